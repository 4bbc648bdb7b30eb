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
)

// index finds them by where.
const index = "spec.outbox"

// Index makes the cache find them. It returns an error when the cache cannot.
func Index(ctx context.Context, indexer client.FieldIndexer) error {
	err := indexer.IndexField(ctx, &v1alpha1.OutboxDispatcher{}, index, func(o client.Object) []string {
		return []string{where(&o.(*v1alpha1.OutboxDispatcher).Spec)}
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

func ofOutbox(name string) string { return "Outbox/" + name }

// OfOutbox are the dispatchers that refer to the Outbox, by name. They are the cache's own, and only read. It returns an
// error when the cache does.
func OfOutbox(ctx context.Context, cached client.Reader, namespace, name string) ([]v1alpha1.OutboxDispatcher, error) {
	return indexed(ctx, cached, namespace, ofOutbox(name))
}

// With are the dispatchers that claim from the outbox of obd, with itself, by name. They are the cache's own, and only
// read. It returns an error when the cache does.
func With(ctx context.Context, cached client.Reader, obd *v1alpha1.OutboxDispatcher) ([]v1alpha1.OutboxDispatcher, error) {
	return indexed(ctx, cached, obd.Namespace, where(&obd.Spec))
}

func indexed(ctx context.Context, cached client.Reader, namespace, where string) ([]v1alpha1.OutboxDispatcher, error) {
	var found v1alpha1.OutboxDispatcherList
	err := cached.List(ctx, &found, client.InNamespace(namespace), client.MatchingFields{index: where}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("list the OutboxDispatchers of %s in namespace %s: %w", where, namespace, err)
	}
	slices.SortFunc(found.Items, func(a, b v1alpha1.OutboxDispatcher) int { return strings.Compare(a.Name, b.Name) })
	return found.Items, nil
}
