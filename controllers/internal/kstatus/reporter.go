package kstatus

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Reporter writes statuses and records Events. All fields but Operator are required.
type Reporter struct {
	// Client reads from the cache and writes.
	Client client.Client
	// Live reads from the API server what is read seldom.
	Live client.Reader
	// Events records events of events.k8s.io.
	Events events.EventRecorder
	// Operator is this operator, by which others know that it holds an object. Empty for one that is in no cluster.
	Operator string

	mu   sync.Mutex
	held map[types.UID]time.Time // when an Event said that another holds the object
}

// Report writes the status of after, if it differs from that of before, by one patch, and then records the events.
// Nothing else of the two may differ. It returns an error when the patch fails, unless the object does not exist any more.
func (r *Reporter) Report(ctx context.Context, before, after client.Object, events func() []Event) error {
	if equality.Semantic.DeepEqual(before, after) {
		return nil
	}
	if err := r.Client.Status().Patch(ctx, after, client.MergeFrom(before)); err != nil {
		return client.IgnoreNotFound(err)
	}
	r.Record(ctx, after, nil, events()...)
	return nil
}

// Record records events about an object, and about a related one, which may be nil. Kubernetes takes an event that is
// repeated with the same versions of both for a series.
func (r *Reporter) Record(ctx context.Context, about client.Object, related runtime.Object, events ...Event) {
	if len(events) == 0 || r.terminating(ctx, about.GetNamespace()) {
		return
	}
	for _, e := range events {
		r.Events.Eventf(about, related, e.Kind, e.Reason, e.Action, "%s", e.Note)
	}
}

// terminating reports whether a namespace is being deleted: then it takes no more events. Namespaces are read only when
// there is an event, and are not watched.
func (r *Reporter) terminating(ctx context.Context, name string) bool {
	namespace := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}}
	if err := r.Live.Get(ctx, types.NamespacedName{Name: name}, namespace); err != nil {
		return apierrors.IsNotFound(err) // else try to record it
	}
	return !namespace.DeletionTimestamp.IsZero()
}
