// Package manager puts the operator together: one constructor, for main and for tests.
package manager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/deadletterreplay"
	"github.com/outbox-operator/outbox-operator/controllers/internal/claimants"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/controllers/internal/kstatus"
	"github.com/outbox-operator/outbox-operator/controllers/internal/observe"
	"github.com/outbox-operator/outbox-operator/controllers/internal/pace"
	"github.com/outbox-operator/outbox-operator/controllers/internal/pods"
	"github.com/outbox-operator/outbox-operator/controllers/outbox"
	"github.com/outbox-operator/outbox-operator/controllers/outboxconsumer"
	"github.com/outbox-operator/outbox-operator/controllers/outboxdispatcher"
)

// Options are the operator's flags, and what tests set.
type Options struct {
	// DispatcherImage is what the dispatchers and the migration Job run. Defaults to the image of Pod.
	DispatcherImage string
	// Pod is the manager's own. Without DispatcherImage, it has a container "manager". Its namespace, where one manager
	// leads by the lease, is how other operators know this one as the holder of an object.
	Pod client.ObjectKey
	// ImagePullSecrets are names of Secrets that the image is pulled with, in the namespace of each pod.
	// Defaults to none.
	ImagePullSecrets []string
	// InheritedLabels are keys of labels that what is made for an object has from it, pods included. Defaults to none.
	InheritedLabels []string
	// MaxRollingUpgrades is how many dispatchers and Outboxes roll or migrate at a time for an upgrade of the operator.
	// Defaults to 3.
	MaxRollingUpgrades int
	// ResumeWithin bounds how long paused pods wait for a rollout when the spec says Running. Defaults to 2m.
	ResumeWithin time.Duration
	// ObserveInterval is the time between two looks at the pods' numbers. Required.
	ObserveInterval time.Duration
	// OperatorNamespace is where the operator's pods run: each dispatcher gets a NetworkPolicy that lets them
	// in. Empty means that none is made.
	OperatorNamespace string
	// WatchNamespaces are the namespaces that are served. Empty means all. With some, rights in these and in
	// the leader's namespace are enough, unless metrics are served with authorization.
	WatchNamespaces []string
	// IgnoreNamespaces are namespaces that are left out, for other operators. Defaults to none. Not with WatchNamespaces.
	IgnoreNamespaces []string
	// LeaderElect keeps all but one manager waiting.
	LeaderElect bool
	// ReleasedLasts is how long an operator that has released its lease holds its objects. Defaults to 1m.
	ReleasedLasts time.Duration
	// LeaderNamespace holds the lease. Defaults to the pod's own.
	LeaderNamespace string
	// MetricsAddress serves metrics; "0" means not at all.
	MetricsAddress string
	// MetricsInsecure serves them without TLS to everybody. Otherwise it is over TLS to those who may get
	// /metrics, which needs TokenReviews and SubjectAccessReviews: rights of the whole cluster.
	MetricsInsecure bool
	// ProbeAddress serves /healthz and /readyz; "0" means not at all.
	ProbeAddress string
	// NamespaceShare is how many bytes the objects of one namespace may take in the cache. Defaults to 36 MiB, three sixteenths of the
	// budget of a manager with a limit of 256 MiB.
	NamespaceShare int64
	// Pods reads the status of dispatchers. Defaults to [observe.NewClient].
	Pods *observe.Client
	// Now is the clock of decisions about the number of pods. Defaults to [time.Now].
	Now func() time.Time
}

// What the manager itself does: it leads by a lease, finds its image in its pod, and lets the API server decide who may
// read metrics.
//
// +kubebuilder:rbac:groups="",resources=pods,verbs=get,namespace=outbox-system
// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,verbs=get;create;update,namespace=outbox-system
// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create

// New returns the operator, ready to start. It returns an error for an option that is not valid, and when the API server
// cannot be reached.
func New(ctx context.Context, cfg *rest.Config, o Options) (ctrl.Manager, error) {
	if o.ObserveInterval <= 0 {
		return nil, fmt.Errorf("the observe interval is %s; set --observe-interval to a duration above 0, such as 10s", o.ObserveInterval)
	}
	if len(o.WatchNamespaces) > 0 && len(o.IgnoreNamespaces) > 0 {
		return nil, errors.New("--watch-namespaces names what is served, so --ignore-namespaces has no effect; give one of them")
	}
	for _, name := range slices.Concat(o.WatchNamespaces, o.IgnoreNamespaces) {
		if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
			return nil, fmt.Errorf("%q is not the name of a namespace: %s; correct it in --watch-namespaces or --ignore-namespaces, or leave that empty", name, problems[0])
		}
	}
	for _, key := range o.InheritedLabels {
		if problems := validation.IsQualifiedName(key); len(problems) > 0 || strings.HasPrefix(key, desired.Prefix) {
			return nil, fmt.Errorf("%q cannot be inherited: %s; correct it in --inherited-labels", key, cmp.Or(strings.Join(problems, ", "), "it is the operator's own"))
		}
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("register the kinds: %w", err)
	}
	cfg = rest.CopyConfig(cfg)
	cfg.UserAgent = desired.Manager // which the API server takes for the field manager of all that is written
	var definitions *served
	kept, shares := limit(cacheOptions(o.WatchNamespaces, o.IgnoreNamespaces, o.InheritedLabels), cmp.Or(o.NamespaceShare, 36<<20))
	mgr, err := ctrl.NewManager(cfg, ctrl.Options{
		Scheme: scheme,
		NewCache: func(cfg *rest.Config, o cache.Options) (_ cache.Cache, err error) {
			definitions, err = newServed(cfg, o)
			return definitions, err
		},
		Cache: kept,
		// A pass sees what the pass before it wrote.
		Client: client.Options{Cache: &client.CacheOptions{EnableReadYourWritesConsistency: ptr.To(true)}},
		Controller: config.Controller{
			ReconciliationTimeout: time.Minute,
			SkipNameValidation:    ptr.To(true), // tests have several managers in a process
		},
		LeaderElection:                o.LeaderElect,
		LeaderElectionID:              kstatus.LeaseName,
		LeaderElectionNamespace:       o.LeaderNamespace,
		LeaderElectionReleaseOnCancel: true, // main ends when the manager does
		HealthProbeBindAddress:        o.ProbeAddress,
		Metrics:                       metricsOptions(o),
	})
	if err != nil {
		return nil, fmt.Errorf("make the manager: %w", err)
	}
	definitions.live, definitions.shares = mgr.GetAPIReader(), shares
	if o.DispatcherImage == "" {
		if o.DispatcherImage, err = ownImage(ctx, mgr.GetAPIReader(), o.Pod); err != nil {
			return nil, fmt.Errorf("find the image of dispatchers, which is that of the manager's pod: %w; set --dispatcher-image, or POD_NAME as config/manager does", err)
		}
	}
	mgr.GetLogger().Info("Dispatchers have an image", "dispatcherImage", o.DispatcherImage)
	if err := addHealth(mgr); err != nil {
		return nil, err
	}
	if o.MaxRollingUpgrades <= 0 {
		o.MaxRollingUpgrades = 3
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Pods == nil {
		o.Pods = observe.NewClient()
	}
	if err := mgr.Add(manager.RunnableFunc(definitions.endWhenServed)); err != nil {
		return nil, fmt.Errorf("add the look for definitions: %w", err)
	}
	return mgr, addReconcilers(ctx, mgr, o, shares, definitions.missing)
}

// ownImage is the image of the manager's container.
func ownImage(ctx context.Context, api client.Reader, key client.ObjectKey) (string, error) {
	pod := &corev1.Pod{}
	if err := api.Get(ctx, key, pod); err != nil {
		return "", err
	}
	for _, c := range pod.Spec.Containers {
		if c.Name == "manager" {
			return c.Image, nil
		}
	}
	return "", fmt.Errorf("the pod %s has no container %q", key, "manager")
}

// addReconcilers sets up one reconciler for each kind that is not missing.
func addReconcilers(ctx context.Context, mgr ctrl.Manager, o Options, shares *shares, missing []string) error {
	if err := claimants.Index(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	watcher, err := client.NewWithWatch(mgr.GetConfig(), client.Options{Scheme: mgr.GetScheme(), HTTPClient: mgr.GetHTTPClient()})
	if err != nil {
		return fmt.Errorf("make the client that watches Events: %w", err)
	}
	pacer := pace.New(mgr.GetClient(), o.MaxRollingUpgrades)
	mounts := pods.NewMounts(watcher, o.WatchNamespaces...)
	platform := desired.Platform{Image: o.DispatcherImage, ImagePullSecrets: o.ImagePullSecrets, InheritedLabels: o.InheritedLabels}
	reporter := &kstatus.Reporter{Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Events: mgr.GetEventRecorder(desired.Manager), Operator: o.Pod.Namespace, Leads: o.LeaderElect, ReleasedLasts: o.ReleasedLasts, Full: shares.crowded}
	if err := mgr.Add(shares.report(reporter)); err != nil {
		return fmt.Errorf("add what reports objects that are left out: %w", err)
	}
	r := &outboxdispatcher.Reconciler{
		Reporter: reporter,
		Mounts:   mounts,
		Observer: observe.New(o.Pods, o.ObserveInterval),
		Platform: platform,
		Interval: o.ObserveInterval,

		OperatorNamespace: o.OperatorNamespace,
		Pace:              pacer,
		Now:               o.Now,
		ResumeWithin:      cmp.Or(o.ResumeWithin, 2*time.Minute),
	}
	databases := &outbox.Reconciler{
		Reporter: reporter,
		Mounts:   mounts,
		Platform: platform,
		Interval: o.ObserveInterval,
		Pace:     pacer,
	}
	replays := &deadletterreplay.Reconciler{
		Reporter: reporter,
		Mounts:   mounts,
		Observer: observe.New(o.Pods, o.ObserveInterval),
		Platform: platform,
		Interval: o.ObserveInterval,

		OperatorNamespace: o.OperatorNamespace,
	}
	consumers := &outboxconsumer.Reconciler{Reporter: reporter}
	setups := map[string]func() error{
		"OutboxDispatcher": func() error { return r.SetupWithManager(mgr) },
		"Outbox":           func() error { return databases.SetupWithManager(mgr) },
		"DeadLetterReplay": func() error { return replays.SetupWithManager(mgr) },
		"OutboxConsumer":   func() error { return consumers.SetupWithManager(ctx, mgr) },
	}
	for _, kind := range kinds {
		if slices.Contains(missing, kind) {
			mgr.GetLogger().Error(nil, "The CustomResourceDefinition of a kind is missing, so it is not reconciled, and the other kinds are; install it, and the manager starts again by itself", "kind", kind)
			continue
		}
		if err := setups[kind](); err != nil {
			return fmt.Errorf("set up the %s controller: %w", kind, err)
		}
	}
	return nil
}

func metricsOptions(o Options) metricsserver.Options {
	if o.MetricsInsecure {
		return metricsserver.Options{BindAddress: o.MetricsAddress}
	}
	return metricsserver.Options{BindAddress: o.MetricsAddress, SecureServing: true, FilterProvider: filters.WithAuthenticationAndAuthorization}
}
