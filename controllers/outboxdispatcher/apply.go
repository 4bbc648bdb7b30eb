package outboxdispatcher

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
)

// applier applies whole objects on the server's side, under one field manager. It remembers what it
// applied and which version that made: the same object over the same version needs no request, and
// an object that somebody edited has another version, so it is applied again. After a restart it
// remembers nothing and applies everything once.
type applier struct {
	client client.Client
	live   client.Reader

	mu      sync.Mutex
	applied map[types.NamespacedName]map[string]stamp // by OutboxDispatcher, then by kind
}

// stamp is what was applied, and the version of the object that came of it.
type stamp struct{ hash, version string }

func newApplier(c client.Client, live client.Reader) *applier {
	return &applier{client: c, live: live, applied: map[types.NamespacedName]map[string]stamp{}}
}

// apply makes the object as desired and reads it into current. An object of that name that is not
// the OutboxDispatcher's own is left alone, which is a problem with WorkloadAvailable.
func (a *applier) apply(ctx context.Context, obd *v1alpha1.OutboxDispatcher, want runtime.ApplyConfiguration, current client.Object) error {
	wanted, err := identify(want)
	if err != nil {
		return err
	}
	key, what := client.ObjectKeyFromObject(&wanted.meta), wanted.meta.Kind+" "+wanted.meta.Name
	exists, err := a.find(ctx, obd, &wanted.meta, current)
	if err != nil {
		return err
	}
	if exists && a.last(obd, wanted.meta.Kind) == (stamp{wanted.hash, version(current)}) && sameMetadata(&wanted.meta, current) {
		return nil
	}
	options := []client.ApplyOption{client.FieldOwner(desired.Manager)}
	if exists { // else a conflict tells that somebody else was faster
		options = append(options, client.ForceOwnership)
	}
	if err := a.client.Apply(ctx, want, options...); err != nil {
		if refused(err) {
			return &problem{v1alpha1.WorkloadAvailableCondition, v1alpha1.ReasonApplyRefused,
				sentence(fmt.Sprintf("the API server refuses the %s: %s; change what it names, or spec.podTemplate", what, err)), true}
		}
		return fmt.Errorf("apply the %s: %w", what, err)
	}
	made, err := identify(want) // Apply has put the server's answer into it
	if err != nil {
		return err
	}
	a.remember(obd, wanted.meta.Kind, stamp{wanted.hash, version(&made.meta)})
	if err := a.client.Get(ctx, key, current); err != nil {
		return fmt.Errorf("read the %s that was just applied: %w", what, err)
	}
	return nil
}

// find reports whether the object is there and ours, and reads it into current from the cache. The
// cache holds only what has our label, so what is not in it is looked for at the API server.
func (a *applier) find(ctx context.Context, obd *v1alpha1.OutboxDispatcher, want *metav1.PartialObjectMetadata, current client.Object) (bool, error) {
	var found metav1.Object = current
	key := client.ObjectKeyFromObject(want)
	err := a.client.Get(ctx, key, current)
	if apierrors.IsNotFound(err) {
		meta := &metav1.PartialObjectMetadata{TypeMeta: want.TypeMeta}
		found, err = meta, a.live.Get(ctx, key, meta)
		if apierrors.IsNotFound(err) {
			return false, nil
		}
	}
	if err != nil {
		return false, fmt.Errorf("read %s %s: %w", want.Kind, want.Name, err)
	}
	if metav1.IsControlledBy(found, obd) {
		return true, nil
	}
	if ref := metav1.GetControllerOf(found); ref != nil && ref.Kind == "OutboxDispatcher" && ref.Name == obd.Name {
		return false, fmt.Errorf("%s %s belongs to a deleted OutboxDispatcher of this name, and is not collected yet", want.Kind, want.Name)
	}
	return false, &problem{v1alpha1.WorkloadAvailableCondition, v1alpha1.ReasonForeignObject,
		fmt.Sprintf("%s %q exists and does not belong to this OutboxDispatcher; delete it, or choose another name for the OutboxDispatcher.", want.Kind, want.Name), true}
}

// identity is an apply configuration's metadata and the hash of the whole.
type identity struct {
	meta metav1.PartialObjectMetadata
	hash string
}

func identify(c runtime.ApplyConfiguration) (id identity, err error) {
	b, err := json.Marshal(c)
	if err == nil {
		err = json.Unmarshal(b, &id.meta)
	}
	if err != nil {
		return id, fmt.Errorf("encode %T: %w", c, err)
	}
	id.hash = desired.Hash(json.RawMessage(b))
	return id, nil
}

// version changes when somebody changes the object. The generation, where there is one, does not
// count what controllers write into the status.
func version(o client.Object) string {
	if g := o.GetGeneration(); g != 0 {
		return string(o.GetUID()) + "/" + strconv.FormatInt(g, 10)
	}
	return string(o.GetUID()) + "/" + o.GetResourceVersion()
}

// sameMetadata compares the labels and annotations that are wanted; the generation does not count
// them.
func sameMetadata(want, have client.Object) bool {
	return contains(have.GetLabels(), want.GetLabels()) && contains(have.GetAnnotations(), want.GetAnnotations())
}

func contains(have, want map[string]string) bool {
	for k, v := range want {
		if got, ok := have[k]; !ok || got != v {
			return false
		}
	}
	return true
}

func (a *applier) last(obd *v1alpha1.OutboxDispatcher, kind string) stamp {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.applied[client.ObjectKeyFromObject(obd)][kind]
}

func (a *applier) remember(obd *v1alpha1.OutboxDispatcher, kind string, s stamp) {
	a.mu.Lock()
	defer a.mu.Unlock()
	key := client.ObjectKeyFromObject(obd)
	if a.applied[key] == nil {
		a.applied[key] = map[string]stamp{}
	}
	a.applied[key][kind] = s
}

func (a *applier) forget(obd types.NamespacedName) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.applied, obd)
}
