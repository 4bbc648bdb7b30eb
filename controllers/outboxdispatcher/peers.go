package outboxdispatcher

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

// findPeers lists the other dispatchers that claim from the same tables, and the Outboxes that have these, as far
// as specs say. They are the cache's own, and only read.
func (r *Reconciler) findPeers(ctx context.Context, obd *v1alpha1.OutboxDispatcher) (peers []*v1alpha1.OutboxDispatcher, outboxes []*v1alpha1.Outbox, err error) {
	all, outboxes, err := r.claimants(ctx, obd)
	if err != nil {
		return nil, nil, err
	}
	for _, peer := range all {
		if peer.UID != obd.UID && peer.DeletionTimestamp.IsZero() {
			peers = append(peers, peer)
		}
	}
	slices.SortFunc(peers, func(a, b *v1alpha1.OutboxDispatcher) int { return strings.Compare(a.Name, b.Name) })
	return peers, outboxes, nil
}

// claimants are all dispatchers that claim from the tables of this one, with itself, and the Outboxes that have
// these tables. They are the cache's own.
func (r *Reconciler) claimants(ctx context.Context, obd *v1alpha1.OutboxDispatcher) ([]*v1alpha1.OutboxDispatcher, []*v1alpha1.Outbox, error) {
	ref := obd.Spec.OutboxRef
	if ref == nil {
		return r.claimantsOf(ctx, obd.Namespace, obd.Spec.Database)
	}
	outbox := &v1alpha1.Outbox{}
	err := r.Client.Get(ctx, types.NamespacedName{Namespace: obd.Namespace, Name: ref.Name}, outbox)
	if client.IgnoreNotFound(err) != nil {
		return nil, nil, fmt.Errorf("read Outbox %s: %w", ref.Name, err)
	}
	if err != nil { // its other users are all that is known
		users, err := r.indexed(ctx, obd.Namespace, refKey(ref.Name))
		return users, nil, err
	}
	return r.claimantsOf(ctx, obd.Namespace, &outbox.Spec.OutboxSpec)
}

// claimantsOf are all dispatchers that claim from the tables, and the Outboxes that have them.
func (r *Reconciler) claimantsOf(ctx context.Context, namespace string, tables *v1alpha1.OutboxSpec) (all []*v1alpha1.OutboxDispatcher, outboxes []*v1alpha1.Outbox, err error) {
	key := tablesKey(tables)
	inline, err := r.indexed(ctx, namespace, key)
	if err != nil {
		return nil, nil, err
	}
	for _, obd := range inline {
		if sameTables(obd.Spec.Database, tables) {
			all = append(all, obd)
		}
	}
	var found v1alpha1.OutboxList
	if err := r.Client.List(ctx, &found, client.InNamespace(namespace), client.MatchingFields{outboxIndex: key}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, nil, fmt.Errorf("list the Outboxes of the same tables: %w", err)
	}
	for i := range found.Items {
		outbox := &found.Items[i]
		if !outbox.DeletionTimestamp.IsZero() || !sameTables(&outbox.Spec.OutboxSpec, tables) {
			continue
		}
		users, err := r.indexed(ctx, namespace, refKey(outbox.Name))
		if err != nil {
			return nil, nil, err
		}
		all, outboxes = append(all, users...), append(outboxes, outbox)
	}
	return all, outboxes, nil
}

// indexed are the dispatchers of a key of [outboxIndex].
func (r *Reconciler) indexed(ctx context.Context, namespace, key string) (all []*v1alpha1.OutboxDispatcher, err error) {
	var found v1alpha1.OutboxDispatcherList
	err = r.Client.List(ctx, &found, client.InNamespace(namespace), client.MatchingFields{outboxIndex: key}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("list the OutboxDispatchers of the same outbox: %w", err)
	}
	for i := range found.Items {
		all = append(all, &found.Items[i])
	}
	return all, nil
}

// outboxIndex finds dispatchers by the Outbox that they refer to, and those with a database of their own, and
// Outboxes, by [tablesKey].
const outboxIndex = "spec.outbox"

// indexOutboxes makes outboxIndex.
func indexOutboxes(ctx context.Context, indexer client.FieldIndexer) error {
	if err := indexer.IndexField(ctx, &v1alpha1.OutboxDispatcher{}, outboxIndex, func(o client.Object) []string {
		spec := &o.(*v1alpha1.OutboxDispatcher).Spec
		if spec.OutboxRef != nil {
			return []string{refKey(spec.OutboxRef.Name)}
		}
		return []string{tablesKey(spec.Database)}
	}); err != nil {
		return fmt.Errorf("index the OutboxDispatchers by outbox: %w", err)
	}
	if err := indexer.IndexField(ctx, &v1alpha1.Outbox{}, outboxIndex, func(o client.Object) []string {
		return []string{tablesKey(&o.(*v1alpha1.Outbox).Spec.OutboxSpec)}
	}); err != nil {
		return fmt.Errorf("index the Outboxes by their tables: %w", err)
	}
	return nil
}

func refKey(outbox string) string { return "Outbox/" + outbox }

// tablesKey is the same for all specs of the same tables, and seldom for others.
func tablesKey(spec *v1alpha1.OutboxSpec) string {
	if server := spec.Server; server != nil { // logins may differ
		return fmt.Sprintf("Server/%s:%d/%s", server.Host, server.Port, server.Database)
	}
	return "Secret/" + spec.Secret.Name
}

// sameTables compares two specs of one key.
func sameTables(a, b *v1alpha1.OutboxSpec) bool {
	return a.Schema == b.Schema && (a.Server != nil || equality.Semantic.DeepEqual(a.Secret, b.Secret))
}

// sameMigration reports whether one migration is that of both specs.
func sameMigration(a, b *v1alpha1.OutboxSpec) bool {
	one, other := *a, *b
	one.Retention, other.Retention = v1alpha1.Retention{}, v1alpha1.Retention{} // of which a migration knows nothing
	one.ReplayLogin, other.ReplayLogin = nil, nil                               // likewise
	return equality.Semantic.DeepEqual(one, other)
}

// older are the peers that were there first and want the same migration of a database of their own, the oldest
// first.
func older(peers []*v1alpha1.OutboxDispatcher, obd *v1alpha1.OutboxDispatcher) []*v1alpha1.OutboxDispatcher {
	found := slices.DeleteFunc(slices.Clone(peers), func(peer *v1alpha1.OutboxDispatcher) bool {
		return peer.Spec.OutboxRef != nil || byAge(peer, obd) > 0 || !sameMigration(peer.Spec.Database, obd.Spec.Database)
	})
	slices.SortFunc(found, byAge)
	return found
}

// oldestOf is the oldest of the Outboxes that want the same migration, nil for none: always the same one, because the
// cache lists them in any order.
func oldestOf(outboxes []*v1alpha1.Outbox, tables *v1alpha1.OutboxSpec) (oldest *v1alpha1.Outbox) {
	for _, outbox := range outboxes {
		if sameMigration(&outbox.Spec.OutboxSpec, tables) && (oldest == nil || byAge(outbox, oldest) < 0) {
			oldest = outbox
		}
	}
	return oldest
}

// byAge compares two objects: the older one is first, and of two that are as old the one whose name is.
func byAge[T client.Object](a, b T) int {
	return cmp.Or(a.GetCreationTimestamp().Compare(b.GetCreationTimestamp().Time), strings.Compare(a.GetName(), b.GetName()))
}

// sharing are the names of others that deliver events of the dispatcher too, each once: of peers, by their
// specs; and of those that the pods meet in the database, which run elsewhere or name it differently. A dispatcher that
// claims nothing, such as a standby, shares nothing.
func sharing(obd *v1alpha1.OutboxDispatcher, peers []*v1alpha1.OutboxDispatcher, statuses []status.Status) (names []string) {
	if !claims(obd) {
		return nil
	}
	for _, peer := range peers {
		if claims(peer) && peer.Spec.Namespace == obd.Spec.Namespace && intersect(peer.Spec.Topics, obd.Spec.Topics) {
			names = append(names, peer.Name)
		}
	}
	for _, a := range statuses {
		for _, name := range a.Sharing {
			if here, ok := strings.CutPrefix(name, obd.Namespace+"/"); ok {
				name = here
			}
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// claims reports whether the spec lets its pods claim.
func claims(obd *v1alpha1.OutboxDispatcher) bool {
	return obd.Spec.State != v1alpha1.StatePaused && ptr.Deref(obd.Spec.Replicas, 1) > 0
}

// intersect compares sets of topics, of which an empty one has all.
func intersect(a, b []string) bool {
	return len(a) == 0 || len(b) == 0 || slices.ContainsFunc(a, func(topic string) bool { return slices.Contains(b, topic) })
}
