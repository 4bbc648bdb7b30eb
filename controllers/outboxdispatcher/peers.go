package outboxdispatcher

import (
	"context"
	"slices"
	"strings"

	"k8s.io/utils/ptr"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/claimants"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
)

// findPeers lists the other dispatchers that claim from the same outbox, as far as specs say. They are the cache's own,
// and only read.
func (r *Reconciler) findPeers(ctx context.Context, obd *v1alpha1.OutboxDispatcher) ([]v1alpha1.OutboxDispatcher, error) {
	all, err := claimants.With(ctx, r.Client, obd)
	return slices.DeleteFunc(all, func(peer v1alpha1.OutboxDispatcher) bool {
		return peer.UID == obd.UID || !peer.DeletionTimestamp.IsZero()
	}), err
}

// sharing are the names of others that deliver events of the dispatcher too, each once: of peers, by their
// specs; and of those that the pods meet in the database, which run elsewhere or name it differently. A dispatcher that
// claims nothing, such as a standby, shares nothing.
func sharing(obd *v1alpha1.OutboxDispatcher, peers []v1alpha1.OutboxDispatcher, statuses []status.Status) (names []string) {
	if !claims(obd) {
		return nil
	}
	for i := range peers {
		if peer := &peers[i]; claims(peer) && peer.Spec.Namespace == obd.Spec.Namespace && intersect(peer.Spec.Topics, obd.Spec.Topics) {
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
	return obd.Spec.State != spec.Paused && ptr.Deref(obd.Spec.Replicas, 1) > 0
}

// intersect compares sets of topics, of which an empty one has all. Those of the peer may be short.
func intersect(peer, own []string) bool {
	return len(peer) == 0 || len(own) == 0 || slices.ContainsFunc(own, func(topic string) bool {
		return slices.Contains(peer, topic) || slices.Contains(peer, desired.ShortTopic(topic))
	})
}
