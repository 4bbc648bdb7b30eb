// Package claimants finds the OutboxDispatchers that claim from the same outbox, as far as their specs say. Pods find
// the others in the database: see status.Status.
package claimants

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
)

// index finds them by where, and by their topics.
const index = "spec.outbox"

// Index makes the cache find them. It returns an error when the cache cannot.
func Index(ctx context.Context, indexer client.FieldIndexer) error {
	err := indexer.IndexField(ctx, &v1alpha1.OutboxDispatcher{}, index, func(o client.Object) []string {
		spec := &o.(*v1alpha1.OutboxDispatcher).Spec
		return append(topics(spec), where(spec))
	})
	if err != nil {
		return fmt.Errorf("index the OutboxDispatchers by outbox: %w", err)
	}
	return nil
}

// where is the same for all specs that name the same Outbox, or the same Secret and schema.
func where(spec *spec.Dispatcher) string {
	if spec.OutboxRef != nil {
		return ofOutbox(spec.OutboxRef.Name)
	}
	db := spec.Database
	if db == nil {
		return "" // from before the rules of the definition, which require one of the two
	}
	return strings.Join([]string{"Secret", db.SecretRef.Name, cmp.Or(db.SecretRef.Key, "dsn"), db.Schema}, "/")
}

// fewTopics is how many topics a spec has at most that is found by each of them: the index is memory.
const fewTopics = 4

// many finds specs that have all topics, or more than a few.
const many = "many"

// topics find a spec by each of its topics, if it has a few, or among those with many.
func topics(spec *spec.Dispatcher) (all []string) {
	if n := len(spec.Topics); n == 0 || n > fewTopics {
		return []string{desired.Hash(where(spec), many)}
	}
	for _, topic := range spec.Topics {
		all = append(all, desired.Hash(where(spec), []string{desired.ShortTopic(topic)}))
	}
	return all
}

func ofOutbox(name string) string { return "Outbox/" + name }

// OfOutbox are the dispatchers that refer to the Outbox, by name. They are the cache's own, and only read. It returns an
// error when the cache does.
func OfOutbox(ctx context.Context, cached client.Reader, namespace, name string) ([]v1alpha1.OutboxDispatcher, error) {
	return indexed(ctx, cached, namespace, ofOutbox(name))
}

// With are the dispatchers that claim from the outbox of obd and may have topics of it, with itself, by name. They are the
// cache's own, and only read. It returns an error when the cache does.
func With(ctx context.Context, cached client.Reader, obd *v1alpha1.OutboxDispatcher) (all []v1alpha1.OutboxDispatcher, err error) {
	if len(obd.Spec.Topics) == 0 || len(obd.Spec.Topics) > fewTopics {
		return indexed(ctx, cached, obd.Namespace, where(&obd.Spec))
	}
	for _, which := range append(topics(&obd.Spec), desired.Hash(where(&obd.Spec), many)) {
		some, err := indexed(ctx, cached, obd.Namespace, which)
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	slices.SortFunc(all, byName)
	return slices.CompactFunc(all, func(a, b v1alpha1.OutboxDispatcher) bool { return a.Name == b.Name }), nil
}

func byName(a, b v1alpha1.OutboxDispatcher) int { return strings.Compare(a.Name, b.Name) }

// indexed waits for no write of the operator's, as none of the lists of objects that users write does: that would be until the cache
// has the newest write to any object of the kind, of whatever namespace.
func indexed(ctx context.Context, cached client.Reader, namespace, where string) ([]v1alpha1.OutboxDispatcher, error) {
	var found v1alpha1.OutboxDispatcherList
	err := cached.List(ctx, &found, client.InNamespace(namespace), client.MatchingFields{index: where}, client.UnsafeDisableDeepCopy, client.DisableReadYourWritesConsistency)
	if err != nil {
		return nil, fmt.Errorf("list the OutboxDispatchers of %s in namespace %s: %w", where, namespace, err)
	}
	slices.SortFunc(found.Items, byName)
	return found.Items, nil
}
