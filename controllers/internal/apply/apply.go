// Package apply makes objects as a reconciler wants them.
package apply

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/controllers/internal/problem"
)

// Applier applies whole objects on the server's side, under one field manager. It remembers what it
// applied and which version that made: the same object over the same version needs no request, and
// an object that was edited since has another version, so it is applied again. After a restart it
// remembers nothing and applies everything once.
type Applier struct {
	// Adopts lets Apply take over an object with the labels of the operator and without a controller, as when the owner was
	// deleted with --cascade=orphan.
	Adopts bool
	// Inherited are labels of the owner that objects have too, but for those that they have already. Nil for none.
	Inherited func(owner metav1.Object) map[string]string

	client    client.Client
	live      client.Reader
	condition string

	mu      sync.Mutex
	applied map[types.NamespacedName]map[string]stamp // by owner, then by kind and name
}

// stamp is what was applied, and the version of the object that came of it.
type stamp struct{ hash, version string }

// New returns an Applier for owners of one kind. It reads with c, and with live what c's cache does not
// hold. What cannot be applied is a problem with the condition.
func New(c client.Client, live client.Reader, condition string) *Applier {
	return &Applier{client: c, live: live, condition: condition, applied: map[types.NamespacedName]map[string]stamp{}}
}

// Apply makes the object as desired and reads it into current. It returns a [*Foreign] for an object of that name that is
// not the owner's, which it leaves alone, and an error when the API server does.
func (a *Applier) Apply(ctx context.Context, owner client.Object, want runtime.ApplyConfiguration, current client.Object) error {
	wanted, err := a.identify(owner, want)
	if err != nil {
		return err
	}
	key, what := client.ObjectKeyFromObject(&wanted.meta), wanted.meta.Kind+" "+wanted.meta.Name
	id := wanted.meta.Kind + "/" + wanted.meta.Name
	exists, err := a.find(ctx, owner, &wanted.meta, current)
	if err != nil {
		return err
	}
	if exists && a.last(owner, id) == (stamp{wanted.hash, version(current)}) && sameMetadata(&wanted.meta, current) {
		return nil
	}
	options := []client.ApplyOption{client.FieldOwner(desired.Manager)}
	if exists { // else a conflict means that another client was faster
		options = append(options, client.ForceOwnership)
	}
	if err := a.client.Apply(ctx, want, options...); err != nil {
		if refused(err) {
			return problem.Stalling(a.condition, v1alpha1.ReasonApplyRefused,
				problem.Sentence(fmt.Sprintf("the API server refuses the %s: %s; change what it names, or spec.pods.template", what, err)))
		}
		return fmt.Errorf("apply the %s: %w", what, err)
	}
	made, err := identify(want) // Apply has put the server's response into it
	if err != nil {
		return err
	}
	a.remember(owner, id, stamp{wanted.hash, version(&made.meta)})
	if err := a.client.Get(ctx, key, current); err != nil {
		return fmt.Errorf("read the %s that was just applied: %w", what, err)
	}
	return nil
}

// find reports whether the object is there and ours, and reads it into current from the cache. The
// cache holds only what has our label, so what is not in it is looked for at the API server.
func (a *Applier) find(ctx context.Context, owner client.Object, want *metav1.PartialObjectMetadata, current client.Object) (bool, error) {
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
	if metav1.IsControlledBy(found, owner) {
		return true, nil
	}
	if a.Adopts && Orphaned(found, want.Labels) {
		return true, nil
	}
	kind, err := a.kind(owner)
	if err != nil {
		return false, err
	}
	if ref := metav1.GetControllerOf(found); ref != nil && ref.Kind == kind && ref.Name == owner.GetName() {
		left, waits := &metav1.PartialObjectMetadata{TypeMeta: want.TypeMeta}, ""
		if err := a.live.Get(ctx, key, left); err == nil && len(left.Finalizers) > 0 { // which the cache does not have
			waits = problem.Clip("; it has the finalizer "+strings.Join(left.Finalizers, ", "), 200) + ": see why who has set it does not remove it"
		}
		return false, fmt.Errorf("%s %s belongs to a deleted %s of this name, and is not collected yet%s", want.Kind, want.Name, kind, waits)
	}
	return false, a.foreign(kind, fmt.Sprintf("%s %q", want.Kind, want.Name))
}

func (a *Applier) kind(owner client.Object) (string, error) {
	gvk, err := a.client.GroupVersionKindFor(owner)
	if err != nil {
		return "", fmt.Errorf("find the kind of %T: %w", owner, err)
	}
	return gvk.Kind, nil
}

// Orphaned reports whether an object is as the operator makes it with those labels, and has no controller.
func Orphaned(found metav1.Object, labels map[string]string) bool {
	for key, value := range labels {
		if strings.HasPrefix(key, desired.Prefix) && found.GetLabels()[key] != value {
			return false
		}
	}
	return metav1.GetControllerOfNoCopy(found) == nil && found.GetDeletionTimestamp() == nil
}

// Foreign is the problem that objects of others have the names of those that the operator makes.
type Foreign struct {
	*problem.Problem
	objects []string // by kind and name
}

// Unwrap returns the problem.
func (f *Foreign) Unwrap() error { return f.Problem }

func (a *Applier) foreign(kind string, objects ...string) *Foreign {
	verbs, them := "exists and does not belong", "it"
	if len(objects) > 1 {
		verbs, them = "exist and do not belong", "them"
	}
	return &Foreign{problem.Stalling(a.condition, v1alpha1.ReasonForeignObject, fmt.Sprintf(
		"%s %s to this %s; delete %s, or choose another name for the %s.", strings.Join(objects, ", "), verbs, kind, them, kind)), objects}
}

// Wanted is an object to be made, and what it is read into.
type Wanted struct {
	Want    runtime.ApplyConfiguration
	Current client.Object
}

// All returns the problem with the other objects that are foreign too, of those that the owner wants. It returns another
// error when the API server does.
func (a *Applier) All(ctx context.Context, owner client.Object, first *Foreign, all ...Wanted) error {
	objects := first.objects
	for _, w := range all {
		wanted, err := a.identify(owner, w.Want)
		if err != nil {
			return err
		}
		var other *Foreign
		if _, err := a.find(ctx, owner, &wanted.meta, w.Current); errors.As(err, &other) {
			objects = append(objects, other.objects...)
		}
	}
	slices.Sort(objects)
	kind, err := a.kind(owner)
	if err != nil {
		return err
	}
	return a.foreign(kind, slices.Compact(objects)...)
}

// identify adds the inherited labels.
func (a *Applier) identify(owner client.Object, c runtime.ApplyConfiguration) (identity, error) {
	id, err := identify(c)
	if err != nil || a.Inherited == nil {
		return id, err
	}
	inherited := a.Inherited(owner)
	maps.DeleteFunc(inherited, func(key, _ string) bool { _, ok := id.meta.Labels[key]; return ok })
	if len(inherited) == 0 {
		return id, nil
	}
	reflect.ValueOf(c).MethodByName("WithLabels").Call([]reflect.Value{reflect.ValueOf(inherited)}) // every apply configuration has it
	return identify(c)
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

// version changes with each change of the object. The generation, where there is one, does not
// count what controllers write into the status.
func version(o client.Object) string {
	if g := o.GetGeneration(); g != 0 {
		return string(o.GetUID()) + "/" + strconv.FormatInt(g, 10)
	}
	return string(o.GetUID()) + "/" + o.GetResourceVersion()
}

// sameMetadata compares the labels and annotations that are wanted: a generation does not count them. Those of an object
// without one may be the user's, which the cache does not keep.
func sameMetadata(want, have client.Object) bool {
	return have.GetGeneration() == 0 || contains(have.GetLabels(), want.GetLabels()) && contains(have.GetAnnotations(), want.GetAnnotations())
}

func contains(have, want map[string]string) bool {
	for k, v := range want {
		if got, ok := have[k]; !ok || got != v {
			return false
		}
	}
	return true
}

func (a *Applier) last(owner client.Object, id string) stamp {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.applied[client.ObjectKeyFromObject(owner)][id]
}

func (a *Applier) remember(owner client.Object, id string, s stamp) {
	a.mu.Lock()
	defer a.mu.Unlock()
	key := client.ObjectKeyFromObject(owner)
	if a.applied[key] == nil {
		a.applied[key] = map[string]stamp{}
	}
	a.applied[key][id] = s
}

// Drop forgets one object that was deleted; id is its kind and its name, with a slash between.
func (a *Applier) Drop(owner client.Object, id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.applied[client.ObjectKeyFromObject(owner)], id)
}

// Forget drops what is remembered of an owner that is gone.
func (a *Applier) Forget(owner types.NamespacedName) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.applied, owner)
}

// refused reports whether the API server will refuse the same request again.
func refused(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err) || untyped(err)
}

// untyped reports whether an object does not fit its schema, such as a container that has an environment variable twice.
// The API server responds to that with code 500 and no reason, as to a fault of its own, so only the text can say it.
func untyped(err error) bool {
	return apierrors.ReasonForError(err) == metav1.StatusReasonUnknown && strings.Contains(err.Error(), "failed to create typed patch object")
}

// Collect deletes the owner's ConfigMaps with the labels, but for those that are needed: by name, or by a ReplicaSet or a
// Job with the labels, a pod of which may still start. It returns an error when the API server does.
func (a *Applier) Collect(ctx context.Context, owner client.Object, labels map[string]string, needed ...string) error {
	ours := []client.ListOption{client.InNamespace(owner.GetNamespace()), client.MatchingLabels(labels), client.UnsafeDisableDeepCopy}
	var files corev1.ConfigMapList
	var jobs batchv1.JobList
	var sets appsv1.ReplicaSetList
	if err := errors.Join(a.client.List(ctx, &files, ours...), a.client.List(ctx, &jobs, ours...), a.client.List(ctx, &sets, ours...)); err != nil {
		return fmt.Errorf("list the ConfigMaps, Jobs and ReplicaSets of %s: %w", owner.GetName(), err)
	}
	for _, job := range jobs.Items {
		needed = append(needed, desired.ConfigNames(&job.Spec.Template.Spec)...)
	}
	for _, set := range sets.Items {
		needed = append(needed, desired.ConfigNames(&set.Spec.Template.Spec)...)
	}
	for _, m := range files.Items {
		if slices.Contains(needed, m.Name) || !metav1.IsControlledBy(&m, owner) {
			continue
		}
		gone := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: m.Name, Namespace: m.Namespace}}
		if err := a.client.Delete(ctx, gone, client.Preconditions{UID: &m.UID}); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete the old ConfigMap %s: %w", m.Name, err)
		}
		a.Drop(owner, "ConfigMap/"+m.Name)
	}
	return nil
}
