// Package manager puts the operator together: one constructor, for main and for tests.
package manager

import (
	"context"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/controllers/internal/observe"
	"github.com/outbox-operator/outbox-operator/controllers/outboxdispatcher"
)

// Options are the operator's flags.
type Options struct {
	// DispatcherImage is what the dispatchers and the migration Job run. Required.
	DispatcherImage string
	// ObserveInterval is the time between two looks at the pods' numbers. Required.
	ObserveInterval time.Duration
	// WatchNamespace is the only namespace that is served. Empty means all.
	WatchNamespace string
	// LeaderElect keeps all but one manager waiting.
	LeaderElect bool
	// LeaderNamespace holds the lease. Defaults to the pod's own.
	LeaderNamespace string
	// MetricsAddress serves metrics over TLS to those who may get /metrics; "0" means not at all.
	MetricsAddress string
	// ProbeAddress serves /healthz and /readyz; "0" means not at all.
	ProbeAddress string
	// Pods asks dispatchers for their status. Defaults to [observe.NewClient].
	Pods *observe.Client
}

// What the manager itself does: it leads by a lease, and asks the API server who may read metrics.
//
// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,verbs=get;create;update,namespace=outbox-system
// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create

// New returns the operator, ready to start.
func New(ctx context.Context, cfg *rest.Config, o Options) (ctrl.Manager, error) {
	if o.DispatcherImage == "" {
		return nil, errors.New("no dispatcher image; set --dispatcher-image to the image that dispatcher pods run")
	}
	if o.ObserveInterval <= 0 {
		return nil, fmt.Errorf("the observe interval is %s; set --observe-interval to a duration above 0, such as 10s", o.ObserveInterval)
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("register the kinds: %w", err)
	}
	mgr, err := ctrl.NewManager(cfg, ctrl.Options{
		Scheme: scheme,
		Cache:  cacheOptions(o.WatchNamespace),
		// A pass sees what the pass before it wrote.
		Client: client.Options{Cache: &client.CacheOptions{EnableReadYourWritesConsistency: ptr.To(true)}},
		Controller: config.Controller{
			ReconciliationTimeout: time.Minute,
			SkipNameValidation:    ptr.To(true), // tests have several managers in a process
		},
		LeaderElection:                o.LeaderElect,
		LeaderElectionID:              "outbox-operator.outbox.dev",
		LeaderElectionNamespace:       o.LeaderNamespace,
		LeaderElectionReleaseOnCancel: true, // main ends when the manager does
		HealthProbeBindAddress:        o.ProbeAddress,
		Metrics: metricsserver.Options{
			BindAddress:    o.MetricsAddress,
			SecureServing:  true,
			FilterProvider: filters.WithAuthenticationAndAuthorization,
		},
	})
	if err != nil {
		return nil, fmt.Errorf("make the manager: %w", err)
	}
	if err := errors.Join(mgr.AddHealthzCheck("ping", healthz.Ping), mgr.AddReadyzCheck("ping", healthz.Ping)); err != nil {
		return nil, fmt.Errorf("add the health checks: %w", err)
	}
	configMaps, err := cluster.New(cfg, func(c *cluster.Options) {
		c.Scheme, c.Cache = scheme, cache.Options{DefaultTransform: stripMetadata, DefaultNamespaces: namespaces(o.WatchNamespace)}
	})
	if err == nil {
		err = mgr.Add(configMaps)
	}
	if err != nil {
		return nil, fmt.Errorf("make the cache of the ConfigMaps' metadata: %w", err)
	}
	if o.Pods == nil {
		o.Pods = observe.NewClient()
	}
	r := &outboxdispatcher.Reconciler{
		Client:     mgr.GetClient(),
		Live:       mgr.GetAPIReader(),
		ConfigMaps: configMaps.GetCache(),
		Events:     mgr.GetEventRecorder(desired.Manager),
		Pods:       o.Pods,
		Image:      o.DispatcherImage,
		Interval:   o.ObserveInterval,
	}
	if err := r.SetupWithManager(ctx, mgr); err != nil {
		return nil, fmt.Errorf("set up the OutboxDispatcher controller: %w", err)
	}
	return mgr, nil
}

// cacheOptions keep memory small: of the common kinds only what the operator made, and of Secrets
// only that they exist and in which version.
func cacheOptions(namespace string) cache.Options {
	ours := cache.ByObject{Label: labels.SelectorFromSet(labels.Set{desired.LabelManagedBy: desired.Manager})}
	return cache.Options{
		DefaultTransform:  cache.TransformStripManagedFields(),
		DefaultNamespaces: namespaces(namespace),
		ByObject: map[client.Object]cache.ByObject{
			&appsv1.Deployment{}:            ours,
			&batchv1.Job{}:                  ours,
			&corev1.ConfigMap{}:             ours,
			&corev1.Pod{}:                   ours,
			&corev1.ServiceAccount{}:        ours,
			&policyv1.PodDisruptionBudget{}: ours,
			&corev1.Secret{}:                {Transform: stripMetadata},
		},
	}
}

// namespaces are those that are watched; nil for all.
func namespaces(only string) map[string]cache.Config {
	if only == "" {
		return nil
	}
	return map[string]cache.Config{only: {}}
}

// stripMetadata drops annotations, where kubectl may have left an object's data, and the rest that
// nobody reads.
func stripMetadata(o any) (any, error) {
	if object, ok := o.(*metav1.PartialObjectMetadata); ok {
		object.Annotations, object.Labels, object.ManagedFields, object.OwnerReferences = nil, nil, nil, nil
	}
	return o, nil
}
