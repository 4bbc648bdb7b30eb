package manager

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

// kinds of the operator.
var kinds = []string{"OutboxDispatcher", "Outbox", "DeadLetterReplay", "OutboxConsumer"}

// served is a cache that knows which of the operator's kinds the API server does not serve, because their definition is
// missing. Nothing of them exists, so the other kinds are reconciled as usual.
type served struct {
	cache.Cache
	scheme  *runtime.Scheme
	mapper  meta.RESTMapper
	missing []string

	live   client.Reader // from the API server
	shares *shares
}

// newServed makes the cache.
func newServed(cfg *rest.Config, o cache.Options) (_ *served, err error) {
	s := &served{scheme: o.Scheme, mapper: o.Mapper}
	for _, kind := range kinds {
		switch err := s.find(kind); {
		case meta.IsNoMatchError(err):
			s.missing = append(s.missing, kind)
		case err != nil:
			return nil, fmt.Errorf("look for the definition of %s: %w", kind, err)
		}
	}
	maps.DeleteFunc(o.ByObject, func(object client.Object, _ cache.ByObject) bool { return s.lacks(object) })
	s.Cache, err = cache.New(cfg, o)
	return s, err
}

// find returns a NoMatch error when the API server does not serve a kind.
func (s *served) find(kind string) error {
	_, err := s.mapper.RESTMapping(v1alpha1.GroupVersion.WithKind(kind).GroupKind(), v1alpha1.GroupVersion.Version)
	return err
}

func (s *served) lacks(o runtime.Object) bool {
	gvk, err := apiutil.GVKForObject(o, s.scheme)
	return err == nil && gvk.Group == v1alpha1.GroupVersion.Group && slices.Contains(s.missing, strings.TrimSuffix(gvk.Kind, "List"))
}

// Get implements cache.Cache, as the others do. What a stop reads is read from the API server where it may be left out.
func (s *served) Get(ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
	if s.lacks(o) {
		return apierrors.NewNotFound(schema.GroupResource{Group: v1alpha1.GroupVersion.Group, Resource: fmt.Sprintf("%T", o)}, key.Name)
	}
	err := s.Cache.Get(ctx, key, o, options...)
	switch o.(type) {
	case *appsv1.Deployment, *corev1.ConfigMap:
		if apierrors.IsNotFound(err) && s.shares.crowded(key.Namespace) {
			if err = s.live.Get(ctx, key, o); err == nil {
				s.shares.transform(o)
			}
		}
	}
	return err
}

func (s *served) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	if s.lacks(list) {
		return nil
	}
	return s.Cache.List(ctx, list, options...)
}

func (s *served) GetInformer(ctx context.Context, o client.Object, options ...cache.InformerGetOption) (cache.Informer, error) {
	if s.lacks(o) {
		return nothing{}, nil
	}
	return s.Cache.GetInformer(ctx, o, options...)
}

func (s *served) IndexField(ctx context.Context, o client.Object, field string, index client.IndexerFunc) error {
	if s.lacks(o) {
		return nil
	}
	return s.Cache.IndexField(ctx, o, field, index)
}

// servedEvery is the time between two looks for definitions that are missing.
const servedEvery = 10 * time.Second

// endWhenServed ends the manager when the API server serves what was missing: it starts again, and reconciles that too.
func (s *served) endWhenServed(ctx context.Context) error {
	for len(s.missing) > 0 {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(servedEvery):
		}
		for _, kind := range s.missing {
			if s.find(kind) == nil {
				return fmt.Errorf("the definition of %s, which was missing, is there now: the manager ends, to start again with it", kind)
			}
		}
	}
	return nil
}

// nothing is an informer of which no object exists.
type nothing struct{}

func (nothing) AddEventHandler(toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error) {
	return nothing{}, nil
}

func (nothing) AddEventHandlerWithResyncPeriod(toolscache.ResourceEventHandler, time.Duration) (toolscache.ResourceEventHandlerRegistration, error) {
	return nothing{}, nil
}

func (nothing) AddEventHandlerWithOptions(toolscache.ResourceEventHandler, toolscache.HandlerOptions) (toolscache.ResourceEventHandlerRegistration, error) {
	return nothing{}, nil
}

func (nothing) RemoveEventHandler(toolscache.ResourceEventHandlerRegistration) error { return nil }
func (nothing) AddIndexers(toolscache.Indexers) error                                { return nil }
func (nothing) HasSynced() bool                                                      { return true }
func (nothing) HasSyncedChecker() toolscache.DoneChecker                             { return nothing{} }
func (nothing) IsStopped() bool                                                      { return false }
func (nothing) Name() string                                                         { return "a kind that is not served" }

func (nothing) Done() <-chan struct{} {
	done := make(chan struct{})
	close(done)
	return done
}
