package outboxdispatcher

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/controllers/internal/migrate"
	"github.com/outbox-operator/outbox-operator/controllers/internal/problem"
	"github.com/outbox-operator/outbox-operator/dispatcher/report"
)

// resolveOutbox puts the spec of the Outbox that is referred to in the place of a database of the
// dispatcher's own, for this pass. Pods that run go on when there is none.
func (r *Reconciler) resolveOutbox(ctx context.Context, s *scope) error {
	ref := s.obd.Spec.OutboxRef
	if ref == nil {
		return nil
	}
	outbox := &v1alpha1.Outbox{}
	err := r.Client.Get(ctx, types.NamespacedName{Namespace: s.obd.Namespace, Name: ref.Name}, outbox)
	if apierrors.IsNotFound(err) {
		return problem.Waiting(v1alpha1.ReferencesResolvedCondition, v1alpha1.ReasonOutboxNotFound, fmt.Sprintf(
			"Outbox %q, which spec.outboxRef names, does not exist in namespace %q; create it, and this goes on by itself.", ref.Name, s.obd.Namespace))
	}
	if err != nil {
		return fmt.Errorf("read Outbox %s: %w", ref.Name, err)
	}
	s.outbox = outbox
	s.obd.Spec.Database, s.before.Spec.Database = &outbox.Spec, &outbox.Spec
	return nil
}

// migration runs the dispatcher's own migration Job, or looks at that of who migrates the same database:
// its Outbox, or the oldest dispatcher that says the same of it.
func (r *Reconciler) migration(ctx context.Context, s *scope) (migrate.Migration, error) {
	if s.outbox != nil {
		wanted, err := desired.NewOutboxMigration(s.outbox, r.Platform)
		if err != nil { // the Outbox tells it
			return migrate.Migration{State: migrate.Failed, Of: "Outbox " + s.outbox.Name, Detail: err.Error()}, nil
		}
		return r.lookAt(ctx, s, s.outbox, wanted)
	}
	own, err := desired.NewMigration(s.obd, r.Platform)
	if err != nil {
		return migrate.Migration{}, podTemplateProblem(err)
	}
	if own != nil {
		for _, peer := range older(s.peers, s.obd) {
			if wanted, err := desired.NewMigration(peer, r.Platform); err == nil {
				return r.lookAt(ctx, s, peer, wanted)
			}
		}
	}
	return r.migrations.Run(ctx, s.obd, own)
}

// lookAt looks at the migration of another, and removes Jobs of the dispatcher's own.
func (r *Reconciler) lookAt(ctx context.Context, s *scope, owner desired.Owner, wanted *desired.Migration) (migrate.Migration, error) {
	if _, err := r.migrations.Run(ctx, s.obd, nil); err != nil {
		return migrate.Migration{}, err
	}
	return r.migrations.Look(ctx, owner, wanted)
}

// findPeers lists the other dispatchers that claim from the same tables, as far as their specs tell. They are
// the cache's own, and only read.
func (r *Reconciler) findPeers(ctx context.Context, s *scope) error {
	var all v1alpha1.OutboxDispatcherList
	key := outboxKey(s.obd)
	if err := r.Client.List(ctx, &all, client.InNamespace(s.obd.Namespace), client.MatchingFields{outboxIndex: key}, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list the OutboxDispatchers of the same outbox: %w", err)
	}
	for i := range all.Items {
		if peer := &all.Items[i]; peer.UID != s.obd.UID && peer.DeletionTimestamp.IsZero() && sameTables(peer, s.obd) {
			s.peers = append(s.peers, peer)
		}
	}
	slices.SortFunc(s.peers, func(a, b *v1alpha1.OutboxDispatcher) int { return strings.Compare(a.Name, b.Name) })
	return nil
}

// outboxIndex finds dispatchers by [outboxKey].
const outboxIndex = "spec.outbox"

// outboxKey is the same for all that claim from the same tables, and seldom for others.
func outboxKey(obd *v1alpha1.OutboxDispatcher) string {
	if ref := obd.Spec.OutboxRef; ref != nil {
		return "Outbox/" + ref.Name
	}
	if server := obd.Spec.Database.Server; server != nil { // logins may differ
		return fmt.Sprintf("Server/%s:%d/%s", server.Host, server.Port, server.Database)
	}
	return "Secret/" + obd.Spec.Database.Secret.Name
}

// sameTables compares two dispatchers of one key.
func sameTables(a, b *v1alpha1.OutboxDispatcher) bool {
	if a.Spec.OutboxRef != nil {
		return true
	}
	one, other := a.Spec.Database, b.Spec.Database
	return one.Schema == other.Schema && (one.Server != nil || equality.Semantic.DeepEqual(one.Secret, other.Secret))
}

// older are the peers that were there first and want the same migration, the oldest first.
func older(peers []*v1alpha1.OutboxDispatcher, obd *v1alpha1.OutboxDispatcher) []*v1alpha1.OutboxDispatcher {
	age := func(a, b *v1alpha1.OutboxDispatcher) int {
		if n := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); n != 0 {
			return n
		}
		return strings.Compare(a.Name, b.Name)
	}
	found := slices.DeleteFunc(slices.Clone(peers), func(peer *v1alpha1.OutboxDispatcher) bool {
		theirs, ours := *peer.Spec.Database, *obd.Spec.Database
		theirs.Retention, ours.Retention = v1alpha1.Retention{}, v1alpha1.Retention{} // of which a migration knows nothing
		return age(peer, obd) > 0 || !equality.Semantic.DeepEqual(theirs, ours)
	})
	slices.SortFunc(found, age)
	return found
}

// sharing are the names of others that deliver events of the dispatcher too, each once: of peers, by their
// specs; and of those that the pods meet in the database, which run elsewhere or name it differently.
func sharing(obd *v1alpha1.OutboxDispatcher, peers []*v1alpha1.OutboxDispatcher, answers []report.Status) (names []string) {
	for _, peer := range peers {
		if peer.Spec.Namespace == obd.Spec.Namespace && intersect(peer.Spec.Topics, obd.Spec.Topics) {
			names = append(names, peer.Name)
		}
	}
	for _, a := range answers {
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

// intersect compares sets of topics, of which an empty one has all.
func intersect(a, b []string) bool {
	return len(a) == 0 || len(b) == 0 || slices.ContainsFunc(a, func(topic string) bool { return slices.Contains(b, topic) })
}
