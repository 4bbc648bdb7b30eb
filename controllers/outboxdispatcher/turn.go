package outboxdispatcher

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/types"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/claimants"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
)

// wantedDeployment is the Deployment of the spec, whose pods read the files, with the generations that it is made of.
func (r *Reconciler) wantedDeployment(ctx context.Context, obd *v1alpha1.OutboxDispatcher, outbox *v1alpha1.Outbox, files string, current *appsv1.Deployment) (*appsv1ac.DeploymentApplyConfiguration, error) {
	wanted, err := desired.Deployment(obd, outbox, files, r.Platform)
	if err != nil {
		return nil, podTemplateProblem(err)
	}
	wanted.WithAnnotations(map[string]string{desired.AnnotationGeneration: generations(obd, outbox)})
	return wanted, r.keepSpec(ctx, current, wanted.Annotations)
}

// generations of the user's objects that a Deployment is made of.
func generations(obd *v1alpha1.OutboxDispatcher, outbox *v1alpha1.Outbox) string {
	own := strconv.FormatInt(obd.Generation, 10)
	if outbox == nil {
		return own
	}
	return own + "/" + strconv.FormatInt(outbox.Generation, 10)
}

// edited reports whether a user has changed what pods are made of since the Deployment was made. By the generation, not by
// the spec: another version of the operator reads the same spec with other defaults. By the spec too: when only the state
// or the number of replicas is another, nothing has changed that pods are made of.
func edited(current *appsv1.Deployment, wanted map[string]string) bool {
	was := current.Annotations
	own, outbox, _ := strings.Cut(was[desired.AnnotationGeneration], "/")
	wantedOwn, wantedOutbox, _ := strings.Cut(wanted[desired.AnnotationGeneration], "/")
	return own != "" && (outbox != wantedOutbox || own != wantedOwn && was[desired.AnnotationSpec] != wanted[desired.AnnotationSpec])
}

// urgent reports whether a user waits for the change: there are no pods yet, or the user has edited what they are made of, or
// starts a standby.
func urgent(obd *v1alpha1.OutboxDispatcher, current *appsv1.Deployment, wanted map[string]string) bool {
	return current == nil || edited(current, wanted) || *current.Spec.Replicas == 0 && desired.Replicas(obd) > 0
}

// queue reports whether the dispatcher waits for its turn: what an upgrade of the operator changes makes pods roll, or a
// migration run, in a few dispatchers at a time. Until then its pods stay as they are. What a user changes does not wait.
func (r *Reconciler) queue(ctx context.Context, obd *v1alpha1.OutboxDispatcher, current *appsv1.Deployment, wanted *appsv1ac.DeploymentApplyConfiguration, migrates bool) (waits bool, err error) {
	rolls := current != nil && *current.Spec.Replicas > 0 && current.Annotations[desired.AnnotationTemplate] != wanted.Annotations[desired.AnnotationTemplate]
	if !rolls && !migrates || urgent(obd, current, wanted.Annotations) {
		r.Pace.Done(obd)
		return false, nil
	}
	may, err := r.Pace.May(ctx, obd)
	return err == nil && !may, err
}

// queueToMigrate is queue before the dispatcher's own migration: one turn covers that and the rollout after it.
func (r *Reconciler) queueToMigrate(ctx context.Context, obd *v1alpha1.OutboxDispatcher, current *appsv1.Deployment, wanted *appsv1ac.DeploymentApplyConfiguration) (waits bool, err error) {
	migration, err := desired.NewMigration(obd, r.Platform)
	if err != nil {
		return false, podTemplateProblem(err)
	}
	migrates, err := r.migrations.Due(ctx, obd, migration)
	if err != nil {
		return false, err
	}
	return r.queue(ctx, obd, current, wanted, migrates)
}

// keepSpec writes how this version of the operator reads the spec of the Deployment's generation, when it renders another
// template of that: so what changes in the spec while the dispatcher waits is seen.
func (r *Reconciler) keepSpec(ctx context.Context, current *appsv1.Deployment, wanted map[string]string) error {
	same := func(annotation string) bool { return current.Annotations[annotation] == wanted[annotation] }
	if current == nil || same(desired.AnnotationTemplate) || !same(desired.AnnotationGeneration) || same(desired.AnnotationSpec) {
		return nil
	}
	patch := fmt.Appendf(nil, `{"metadata":{"uid":%q,"annotations":{%q:%q}}}`, current.UID, desired.AnnotationSpec, wanted[desired.AnnotationSpec])
	if err := r.Client.Patch(ctx, current.DeepCopy(), client.RawPatch(types.MergePatchType, patch)); err != nil {
		return fmt.Errorf("annotate Deployment %s: %w", current.Name, err)
	}
	return nil
}

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
