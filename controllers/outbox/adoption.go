package outbox

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/status"
	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/controllers/internal/kstatus"
	"github.com/outbox-operator/outbox-operator/controllers/internal/migrate"
	"github.com/outbox-operator/outbox-operator/controllers/internal/problem"
)

// listedAdoptions is how many adoptions a status has, so that what the Job leaves of them fits a termination message,
// which has 4,096 bytes.
const listedAdoptions = 16

// repeatedAfter is how long after its end a Job is made again that has succeeded and has left no outcome that can be read.
const repeatedAfter = 5 * time.Minute

// adopt runs the Job that brings the adoptions to their phases, once the schema is up to date and the status has their
// names: by these it is known later what was taken out of the spec.
func (r *Reconciler) adopt(ctx context.Context, o *observed) error {
	outbox := o.outbox
	if !desired.Migrates(&outbox.Spec) { // what an earlier spec has made ends
		if _, err := r.adoptions.Run(ctx, outbox, nil); err != nil {
			return err
		}
		return r.applied.Collect(ctx, outbox, desired.Selector(outbox, desired.ComponentAdoption))
	}
	if o.migration.State != migrate.Succeeded || !inStatus(outbox) {
		return nil
	}
	wanted, err := desired.NewAdoption(outbox, r.Platform)
	if errors.Is(err, desired.ErrPodTemplate) {
		return problem.Stalling(api.SchemaReadyCondition, api.ReasonInvalidPodTemplate, problem.Sentence(err.Error()))
	}
	if err != nil {
		return err
	}
	var needed []string
	if files := desired.AdoptionConfigMap(outbox); files != nil {
		if err := r.applied.Apply(ctx, outbox, files, &corev1.ConfigMap{}); err != nil {
			return err
		}
		needed = append(needed, *files.Name)
	}
	if o.adoption, err = r.adoptions.Run(ctx, outbox, wanted); err != nil {
		return err
	}
	if o.adoption.State == migrate.Succeeded {
		if o.adopted = said(o.adoption.Pods); o.adopted == nil && len(waiting(*o)) > 0 && !slices.ContainsFunc(o.adoption.Pods, unfinished) {
			o.unread = true
			return r.runAgain(ctx, o)
		}
	}
	return r.applied.Collect(ctx, outbox, desired.Selector(outbox, desired.ComponentAdoption), needed...)
}

// inStatus reports whether the status has each adoption of the spec.
func inStatus(o *api.Outbox) bool {
	return !slices.ContainsFunc(o.Spec.Adopt, func(a api.Adoption) bool { return phaseOf(o.Status.Adoptions, a.Name) == "" })
}

func phaseOf(all []api.AdoptionStatus, name string) string {
	i := slices.IndexFunc(all, func(s api.AdoptionStatus) bool { return s.Name == name })
	if i < 0 {
		return ""
	}
	return all[i].Phase
}

// runAgain deletes a Job that has succeeded and of which no pod is left that says how far the adoptions are, some time after
// its end: what keeps the outcome of one from being read may do so with each.
func (r *Reconciler) runAgain(ctx context.Context, o *observed) error {
	var jobs batchv1.JobList
	if err := r.Client.List(ctx, &jobs, client.InNamespace(o.outbox.Namespace), client.MatchingLabels(desired.Selector(o.outbox, desired.ComponentAdoption))); err != nil {
		return fmt.Errorf("list the adoption Jobs of Outbox %s: %w", o.outbox.Name, err)
	}
	for i := range jobs.Items {
		job := &jobs.Items[i]
		if end := job.Status.CompletionTime; end == nil || time.Since(end.Time) < repeatedAfter || !metav1.IsControlledBy(job, o.outbox) {
			continue
		}
		if err := r.Client.Delete(ctx, job, client.Preconditions{UID: &job.UID}, client.PropagationPolicy(metav1.DeletePropagationBackground)); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete Job %s, whose pod is gone: %w", job.Name, err)
		}
		r.applied.Drop(o.outbox, "Job/"+job.Name)
	}
	return nil
}

// unfinished reports whether the end of a pod is not known yet.
func unfinished(pod corev1.Pod) bool {
	return pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed
}

// said is what a pod that came to its end has left, nil for none.
func said(pods []corev1.Pod) *status.Adoptions {
	for _, pod := range pods {
		for _, current := range pod.Status.ContainerStatuses {
			ended, left := current.State.Terminated, &status.Adoptions{}
			if current.Name != desired.Container || ended == nil || ended.ExitCode != 0 {
				continue
			}
			if err := json.Unmarshal([]byte(ended.Message), left); err == nil {
				return left
			}
		}
	}
	return nil
}

// setAdoptions takes what the Job has said; before it has, an adoption is as it was, or pending.
func setAdoptions(current *api.OutboxStatus, o observed) {
	var all []api.AdoptionStatus
	if o.adopted != nil {
		for _, a := range o.adopted.Adoptions {
			s := api.AdoptionStatus{Name: a.Name, Phase: a.Phase, Theirs: a.Theirs, Ours: a.Ours, Missing: a.Missing, Extra: a.Extra, Refused: a.Refused}
			if !a.Since.IsZero() {
				s.Since = ptr.To(metav1.NewTime(a.Since.Truncate(time.Second))) // as the API server keeps it: with fractions each pass would write it again
			}
			all = append(all, s)
		}
	} else {
		all = slices.Clone(current.Adoptions)
		for _, a := range o.outbox.Spec.Adopt {
			if phaseOf(all, a.Name) == "" {
				all = append(all, api.AdoptionStatus{Name: a.Name, Phase: api.AdoptionPending})
			}
		}
	}
	if !desired.Migrates(&o.outbox.Spec) { // no Job forgets those of which nothing is left to undo
		all = slices.DeleteFunc(all, func(s api.AdoptionStatus) bool {
			return s.Phase == api.AdoptionPending || s.Phase == string(api.AdoptionBack)
		})
	}
	wanted := func(s api.AdoptionStatus) int { // those of the spec come first
		if slices.ContainsFunc(o.outbox.Spec.Adopt, func(a api.Adoption) bool { return a.Name == s.Name }) {
			return 0
		}
		return 1
	}
	slices.SortFunc(all, func(a, b api.AdoptionStatus) int {
		return cmp.Or(wanted(a)-wanted(b), strings.Compare(a.Name, b.Name))
	})
	current.Adoptions = all[:min(len(all), listedAdoptions)]
	if len(all) == 0 {
		current.Adoptions = nil
	}
}

// waiting are the adoptions of the spec that have not reached their phase, and those that were taken out of it and whose
// shadow is still there.
func waiting(o observed) (names []string) {
	for _, a := range o.outbox.Spec.Adopt {
		if phaseOf(o.outbox.Status.Adoptions, a.Name) != string(a.Phase) {
			names = append(names, a.Name)
		}
	}
	for _, s := range removed(o.outbox) {
		if s.Phase != string(api.AdoptionCutover) {
			names = append(names, s.Name)
		}
	}
	return names
}

// removed are adoptions that the spec had.
func removed(o *api.Outbox) (all []api.AdoptionStatus) {
	for _, s := range o.Status.Adoptions {
		if !slices.ContainsFunc(o.Spec.Adopt, func(a api.Adoption) bool { return a.Name == s.Name }) {
			all = append(all, s)
		}
	}
	return all
}

// adopted is the condition, or nothing when nothing is adopted.
func adopted(o observed) metav1.Condition {
	const kind = api.AdoptedCondition
	all := o.outbox.Status.Adoptions
	switch behind := waiting(o); {
	case len(all) == 0 && len(behind) == 0:
		return metav1.Condition{}
	case o.adoption.State == migrate.Failed:
		return kstatus.Condition(kind, metav1.ConditionFalse, api.ReasonAdoptionFailed, o.adoption.Sentence())
	case len(behind) > 0 && o.adoption.State == migrate.Running:
		return kstatus.Condition(kind, metav1.ConditionFalse, api.ReasonAdopting, o.adoption.Sentence()+" It is about "+quoted(behind)+".")
	case o.unread:
		return kstatus.Condition(kind, metav1.ConditionFalse, api.ReasonAdopting, fmt.Sprintf("The adoption Job succeeded, and its pod left no outcome of %s that can be read. It is made again %d minutes after its end. "+
			"Let the pod write the file of its terminationMessagePath, and let nothing remove pods that have just ended.", quoted(behind), repeatedAfter/time.Minute))
	case len(behind) > 0 && !desired.Migrates(&o.outbox.Spec):
		return kstatus.Condition(kind, metav1.ConditionFalse, api.ReasonAdopting,
			"No Job can undo "+quoted(behind)+", because spec.migration is gone or has policy None; set it again with policy Job, until status.adoptions does not list that any more.")
	case len(behind) > 0:
		return kstatus.Condition(kind, metav1.ConditionFalse, api.ReasonAdopting, "A Job brings "+quoted(behind)+" to the phase of spec.adopt when the migration has succeeded.")
	}
	differ := chosen(all, func(s api.AdoptionStatus) bool { return s.Missing > 0 || s.Extra > 0 })
	refused := chosen(all, func(s api.AdoptionStatus) bool { return s.Refused > 0 })
	left := chosen(removed(o.outbox), func(api.AdoptionStatus) bool { return true })
	switch {
	case len(differ) > 0:
		return kstatus.Condition(kind, metav1.ConditionFalse, api.ReasonCountsDiffer,
			"Rows have no event, or events no row, of "+quoted(differ)+": see missing and extra in status.adoptions, and find out why before the cutover."+recount(o.outbox))
	case len(refused) > 0:
		return kstatus.Condition(kind, metav1.ConditionFalse, api.ReasonRowsRefused,
			"No event can be made of some rows of "+quoted(refused)+", and so no dispatcher sends them; `dispatcher adopt status` names them, and why."+recount(o.outbox))
	case len(left) > 0:
		return kstatus.Condition(kind, metav1.ConditionTrue, api.ReasonLeftCutOver,
			"Not in spec.adopt any more, and still cut over: "+quoted(left)+". Rows of its table still become events; to undo it, add it again with phase Back.")
	}
	return kstatus.Condition(kind, metav1.ConditionTrue, api.ReasonAsDeclared, "Each adoption is in the phase of spec.adopt, and its counts agree."+recount(o.outbox))
}

// recount says how old the counts of what is cut over are: no Job counts it again.
func recount(o *api.Outbox) string {
	if len(chosen(o.Status.Adoptions, func(s api.AdoptionStatus) bool { return s.Phase == string(api.AdoptionCutover) })) == 0 {
		return ""
	}
	selector := labels.SelectorFromSet(desired.Selector(o, desired.ComponentAdoption))
	return " What is cut over was counted by the last Job; to count again: `kubectl delete job -l " + selector.String() + "`."
}

func chosen(all []api.AdoptionStatus, which func(api.AdoptionStatus) bool) (names []string) {
	for _, s := range all {
		if which(s) {
			names = append(names, s.Name)
		}
	}
	return names
}

// quoted is the first names of a message.
func quoted(names []string) string {
	var all []string
	for _, name := range names[:min(len(names), maxNamed)] {
		all = append(all, strconv.Quote(name))
	}
	text := strings.Join(all, ", ")
	if len(names) > maxNamed {
		text += " and others"
	}
	return text
}

// steps are the Events of phases that were reached.
func steps(before, after []api.AdoptionStatus) (events []kstatus.Event) {
	for _, s := range after {
		was := phaseOf(before, s.Name)
		if was == s.Phase {
			continue
		}
		event := kstatus.Event{Kind: corev1.EventTypeNormal, Action: "Adopt " + s.Name}
		switch s.Phase {
		case string(api.AdoptionShadow):
			event.Reason, event.Note = api.ReasonShadowed, fmt.Sprintf("Adoption %q is in the shadow: its rows are counted, and nothing is sent.", s.Name)
		case string(api.AdoptionCutover):
			event.Reason, event.Note = api.ReasonCutOver, fmt.Sprintf("Adoption %q is cut over: its rows become events, which dispatchers send.", s.Name)
		case string(api.AdoptionBack):
			if was == api.AdoptionPending || was == "" {
				continue
			}
			event.Reason, event.Note = api.ReasonWentBack, fmt.Sprintf("Adoption %q went back: its rows are the service's worker's again.", s.Name)
		default:
			continue
		}
		events = append(events, event)
	}
	for _, s := range before {
		if phaseOf(after, s.Name) == "" && s.Phase != string(api.AdoptionBack) && s.Phase != api.AdoptionPending {
			events = append(events, kstatus.Event{Kind: corev1.EventTypeNormal, Action: "Adopt " + s.Name, Reason: api.ReasonWentBack,
				Note: fmt.Sprintf("Adoption %q was taken out of spec.adopt, and went back: its rows are the service's worker's again.", s.Name)})
		}
	}
	return events
}
