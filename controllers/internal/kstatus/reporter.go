package kstatus

import (
	"context"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Reporter writes statuses and tells of them. All fields are required.
type Reporter struct {
	Client client.Client
	// Live reads namespaces from the API server.
	Live client.Reader
	// Events records events of events.k8s.io.
	Events events.EventRecorder
}

// Report writes the status of after, if it is not that of before, by one patch, and then records the
// events. Nothing else of the two may differ.
func (r *Reporter) Report(ctx context.Context, before, after client.Object, tell func() []Event) error {
	if equality.Semantic.DeepEqual(before, after) {
		return nil
	}
	if err := r.Client.Status().Patch(ctx, after, client.MergeFrom(before)); err != nil {
		return client.IgnoreNotFound(err)
	}
	r.Tell(ctx, after, nil, tell()...)
	return nil
}

// Tell records events about an object, and about a related one, which may be nil. An event that comes
// again with the same versions of both is taken for a series.
func (r *Reporter) Tell(ctx context.Context, about client.Object, related runtime.Object, told ...Event) {
	if len(told) == 0 || r.leaving(ctx, about.GetNamespace()) {
		return
	}
	for _, e := range told {
		r.Events.Eventf(about, related, e.Kind, e.Reason, e.Action, "%s", e.Note)
	}
}

// leaving reports whether a namespace is being deleted. It takes no more events, and there is nothing
// to tell: its objects vanish one by one, and this one is about to. Namespaces are read only when
// there is something to tell, and watched by nobody.
func (r *Reporter) leaving(ctx context.Context, name string) bool {
	namespace := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}}
	if err := r.Live.Get(ctx, types.NamespacedName{Name: name}, namespace); err != nil {
		return apierrors.IsNotFound(err) // else try to tell
	}
	return !namespace.DeletionTimestamp.IsZero()
}
