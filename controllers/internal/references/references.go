// Package references finds the Secrets and ConfigMaps that a spec names and that are not there, by what the
// kubelet says of pods that do not start, and of those that run. The operator may read no Secret (CONTRACT C-103).
package references

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/controllers/internal/pods"
	"github.com/outbox-operator/outbox-operator/controllers/internal/problem"
)

// Reference is a key of a Secret or of a ConfigMap that a spec names, and the field that does.
type Reference struct{ kind, name, key, field string }

const (
	kindSecret    = "Secret"
	kindConfigMap = "ConfigMap"
)

// Of returns the references of the dispatcher's spec and of the Outbox that it refers to, nil for none, in its order.
func Of(obd *v1alpha1.OutboxDispatcher, outbox *v1alpha1.Outbox) []Reference {
	return named(slices.Concat(desired.DispatcherRefs(obd, outbox), desired.MigrationRefs(obd)))
}

// OfOutbox returns the references of the Outbox's spec, in its order.
func OfOutbox(o *v1alpha1.Outbox) []Reference { return named(desired.OutboxRefs(o)) }

// OfReplay returns the references of the Job of a DeadLetterReplay.
func OfReplay(r desired.Replay) []Reference { return named(r.Refs()) }

func named(refs []spec.Ref) (all []Reference) {
	for _, ref := range refs {
		if ref.ConfigMap != "" {
			all = append(all, Reference{kindConfigMap, ref.ConfigMap, ref.Key, ref.Field})
			continue
		}
		all = append(all, Reference{kindSecret, ref.Secret, ref.Key, ref.Field})
	}
	return all
}

// maxChecked is how many pods that do not start are checked at most: they have one template.
const maxChecked = 3

// Missing finds a reference to what does not exist, by the pods that do not start; nil for none.
func Missing(mounts pods.FailedMounts, refs []Reference, all []corev1.Pod) *problem.Problem {
	waiting := slices.DeleteFunc(slices.Clone(all), func(pod corev1.Pod) bool {
		return pod.DeletionTimestamp != nil || pod.Status.Phase != corev1.PodPending || pod.Spec.NodeName == ""
	})
	slices.SortStableFunc(waiting, func(a, b corev1.Pod) int { return b.CreationTimestamp.Compare(a.CreationTimestamp.Time) })
	for i := range waiting[:min(len(waiting), maxChecked)] {
		_, text := pods.Trouble(waiting[i : i+1])
		if p := missing(refs, waiting[i].Namespace, pods.MountFailure(mounts, &waiting[i])+"\n"+text); p != nil {
			return p
		}
	}
	return nil
}

// Gone finds a reference that existed when the pods started, and does not any more; nil for none. The pods keep running
// with what they have read.
func Gone(mounts pods.FailedMounts, refs []Reference, all []corev1.Pod, now time.Time) *problem.Problem {
	since := pods.FilesThere(all)
	for i := range all {
		pod := &all[i]
		if pod.DeletionTimestamp != nil || pod.Status.Phase != corev1.PodRunning {
			continue
		}
		if p := missing(refs, pod.Namespace, pods.RemountFailure(mounts, pod, since, now)); p != nil {
			p.Message += " Running pods keep what they have read, and a pod that starts would wait."
			return p
		}
	}
	return nil
}

// What the kubelet says of an object or a key that is not there: of files first, then of variables.
var (
	noObject = regexp.MustCompile(`(?i)\b(secret|configmap)s? "([^"]+)" not found`)
	noKey    = regexp.MustCompile(`references non-existent (secret|config) key: ([A-Za-z0-9._-]+)`)
	noKeyOf  = regexp.MustCompile(`couldn't find key ([A-Za-z0-9._-]+) in (Secret|ConfigMap) [^/ ]+/([a-z0-9.-]+)`)
)

// missing is the first reference that leads nowhere by the kubelet's words, nil for none.
func missing(refs []Reference, namespace, words string) *problem.Problem {
	if m := noObject.FindStringSubmatch(words); m != nil {
		kind := kindOf(m[1])
		return unresolved(kind+"NotFound", fmt.Sprintf("%s %q, which %s names, does not exist in namespace %q; create it, and the operator continues.",
			kind, m[2], fieldsOf(refs, kind, m[2]), namespace))
	}
	kind, key, names := "", "", []string(nil)
	if m := noKeyOf.FindStringSubmatch(words); m != nil {
		kind, key, names = m[2], m[1], []string{m[3]}
	} else if m := noKey.FindStringSubmatch(words); m != nil {
		kind, key = kindOf(m[1]), m[2]
		for _, ref := range refs { // the kubelet does not say which
			if ref.kind == kind && ref.key == key && !slices.Contains(names, ref.name) {
				names = append(names, ref.name)
			}
		}
	}
	var which []string
	for _, name := range names {
		which = append(which, fmt.Sprintf("%q, which %s names", name, fieldsOf(refs, kind, name)))
	}
	switch len(which) {
	case 0:
		return nil
	case 1:
		return unresolved(kind+"KeyNotFound", fmt.Sprintf("%s %s, has no key %q; add the key, or name the right one.", kind, which[0], key))
	}
	return unresolved(kind+"KeyNotFound", fmt.Sprintf("One of these has no key %q: %s %s; add the key, or name the right one.", key, kind, strings.Join(which, "; "+kind+" ")))
}

func unresolved(reason, message string) *problem.Problem {
	return problem.Waiting(v1alpha1.ReferencesResolvedCondition, reason, message)
}

func kindOf(word string) string {
	if strings.EqualFold(word, kindSecret) {
		return kindSecret
	}
	return kindConfigMap
}

// fieldsOf are the fields of the spec that name the object.
func fieldsOf(refs []Reference, kind, name string) string {
	var fields []string
	for _, ref := range refs {
		if ref.kind == kind && ref.name == name && !slices.Contains(fields, ref.field) {
			fields = append(fields, ref.field)
		}
	}
	if len(fields) == 0 {
		return "the pod template"
	}
	return strings.Join(fields, " and ")
}
