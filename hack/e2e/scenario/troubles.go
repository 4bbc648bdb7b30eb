package scenario

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

// Trouble is one of a dispatcher's first minute, on a first install.
type Trouble struct {
	Name string
	// Change makes the trouble in the manifest of the OutboxDispatcher, Wrong in the Secrets; More is a part of the spec,
	// and Also what else is applied before. Empty for nothing.
	Change, Wrong *strings.Replacer
	More, Also    string
	// Word is what Kubernetes or the migration's pod says when it knows the cause. Empty for what a dispatcher's pod finds.
	Word string
	// Reason is in the column REASON, and Words are in the message.
	Reason string
	Words  []string
	// Patch of the OutboxDispatcher ends the trouble, or Kubectl, or Apply of a manifest; else the right Secrets.
	Patch   string
	Kubectl []string
	Apply   string
}

// Troubles are all of them. The dispatcher's sink is at sink; tls is one with a certificate, which right has signed and wrong has
// not; and at down nothing listens. The database of each is named as [Trouble.Database] says.
func Troubles(sink, tls, right, wrong, down string) []Trouble {
	authority := func(pem string) string {
		return "apiVersion: v1\nkind: Secret\nmetadata: {name: orders-ca}\nstringData:\n  ca.crt: |\n" + Indent(pem)
	}
	pods := func(spec string) string { return "  pods: {template: {spec: {" + spec + "}}}\n" }
	container := func(fields string) string { return pods("containers: [{name: dispatcher, " + fields + "}]") }
	change := strings.NewReplacer
	const usual, login = `{"spec":{"pods":{"template":null}}}`, "secretRef: {name: orders-db}"
	return []Trouble{
		{Name: "secret", Change: change(login, "secretRef: {name: absent}"), Word: `secret \"absent\" not found`,
			Reason: "SecretNotFound", Words: []string{`"absent"`, "create it"}, Patch: `{"spec":{"database":{"secretRef":{"name":"orders-db"}}}}`},
		{Name: "key", Change: change(login, "secretRef: {name: orders-db, key: nokey}"), Word: "references non-existent secret key: nokey",
			Reason: "SecretKeyNotFound", Words: []string{`"nokey"`, "add the key"}, Patch: `{"spec":{"database":{"secretRef":{"key":null}}}}`},
		{Name: "password", Wrong: change("first_password_dispatcher:", "first_password_dispatcher:not"),
			Reason: "AuthenticationFailed", Words: []string{"password authentication failed", "correct the user and the password"}},
		{Name: "image", More: container("image: nowhere.invalid/image:1"), Word: "ErrImagePull",
			Reason: "ImagePullFailed", Words: []string{`"nowhere.invalid/image:1" cannot be pulled`, "check its name"}, Patch: usual},
		{Name: "node", More: pods("nodeSelector: {no: such}"), Word: "Unschedulable", Reason: "Unschedulable", Words: []string{"No node takes a pod", "node affinity/selector"}, Patch: usual},
		{Name: "quota", Also: "apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: none}\nspec: {hard: {pods: 0}}\n", Word: "exceeded quota",
			Reason: "Unavailable", Words: []string{"exceeded quota: none"}, Kubectl: []string{"delete", "quota", "none"}},
		{Name: "owner", Word: "permission denied", Reason: "MigrationFailed", Words: []string{"permission denied", "log in as the owner"}},
		{Name: "ca", Change: change(fmt.Sprintf("http: {url: %q}", sink), fmt.Sprintf("http: {url: %q}\n    tls: {caSecretRef: {name: orders-ca}}", tls)),
			Also: authority(wrong), Reason: "CertificateInvalid", Words: []string{"none that is there", "has signed it"}, Apply: authority(right)},
		{Name: "sink", Change: change(sink, down), Reason: "ConnectionFailed", Words: []string{"check that it runs"}},
		{Name: "cel", More: "  message: {transform: [{payload: 'without(paylaod, [\"card\"])'}]}\n", Word: "undeclared reference to 'paylaod'",
			Reason: "InvalidPipeline", Words: []string{"spec.message.transform[0].payload: line 1, column 9"}, Patch: `{"spec":{"message":{"transform":null}}}`},
		{Name: "stranger", Also: "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: orders-dispatcher}\n---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: orders-dispatcher}\n" +
			"spec: {replicas: 0, selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: a, image: a}]}}}\n",
			Word: "[", Reason: "ForeignObject", Words: []string{`Deployment "orders-dispatcher"`, `ServiceAccount "orders-dispatcher"`, "delete them"}, Kubectl: []string{"delete", "deployment/orders-dispatcher", "serviceaccount/orders-dispatcher"}},
		{Name: "podsecurity", More: pods("hostNetwork: true"), Word: "violates PodSecurity", Reason: "Unavailable", Words: []string{"violates PodSecurity", "hostNetwork"}, Patch: usual},
		{Name: "limitrange", Also: "apiVersion: v1\nkind: LimitRange\nmetadata: {name: least}\nspec: {limits: [{type: Container, min: {memory: 100Mi}}]}\n", Word: "minimum memory usage per Container",
			Reason: "Unavailable", Words: []string{"minimum memory usage per Container is 100Mi"}, Kubectl: []string{"delete", "limitrange", "least"}},
		{Name: "memory", More: container("resources: {requests: {memory: 8Mi}, limits: {memory: 8Mi}}"), Word: "OOMKilled",
			Reason: "OOMKilled", Words: []string{"exceeded its memory limit", "raise the limit"}, Patch: usual},
	}
}

// Database is the name of its database.
func (t Trouble) Database() string { return "first_" + t.Name }

// Secrets are the manifests' Secrets with the trouble.
func (t Trouble) Secrets(m Manifests) string {
	if t.Wrong != nil {
		return t.Wrong.Replace(m.Secrets())
	}
	return m.Secrets()
}

// Dispatcher is the manifests' OutboxDispatcher with the trouble.
func (t Trouble) Dispatcher(m Manifests) string {
	if t.Change != nil {
		return t.Change.Replace(m.Dispatcher()) + t.More
	}
	return m.Dispatcher() + t.More
}

// Named reports whether the column and the message have the cause, and a Warning does.
func (t Trouble) Named(of Seen) bool {
	ready := meta.FindStatusCondition(of.Conditions, v1alpha1.ReadyCondition)
	if ready == nil || ready.Reason != t.Reason || slices.ContainsFunc(t.Words, func(word string) bool { return !strings.Contains(ready.Message, word) }) {
		return false
	}
	return slices.ContainsFunc(of.Events, func(e corev1.Event) bool { return e.Reason == t.Reason && e.Type == corev1.EventTypeWarning })
}

// Known reports whether Kubernetes, or a pod as it ended, has said the word; or whether a dispatcher runs.
func (t Trouble) Known(of Seen) bool {
	if t.Word == "" {
		return slices.ContainsFunc(of.Pods, func(p corev1.Pod) bool {
			return p.Labels["outbox.dev/component"] == "dispatcher" && p.Status.Phase == corev1.PodRunning
		})
	}
	pods, _ := json.Marshal(of.Pods)
	events, _ := json.Marshal(of.Events)
	return strings.Contains(string(pods)+string(events), t.Word)
}

// Seen is what a namespace has: the conditions of its OutboxDispatcher, pods and Events.
type Seen struct {
	Conditions []metav1.Condition
	Pods       []corev1.Pod
	Events     []corev1.Event
}

// Look reads all namespaces. It returns an error when kubectl fails.
func (c *Cluster) Look(ctx context.Context) (map[string]*Seen, error) {
	var pods corev1.PodList
	var events corev1.EventList
	var dispatchers v1alpha1.OutboxDispatcherList
	for kind, into := range map[string]any{"pods": &pods, "events": &events, "outboxdispatchers": &dispatchers} {
		out, err := c.Run(ctx, "get", kind, "--all-namespaces", "-o", "json")
		if err == nil {
			err = json.Unmarshal([]byte(out), into)
		}
		if err != nil {
			return nil, fmt.Errorf("read all %s: %w", kind, err)
		}
	}
	all := map[string]*Seen{}
	of := func(namespace string) *Seen {
		if all[namespace] == nil {
			all[namespace] = &Seen{}
		}
		return all[namespace]
	}
	for _, o := range dispatchers.Items {
		of(o.Namespace).Conditions = o.Status.Conditions
	}
	for _, o := range pods.Items {
		of(o.Namespace).Pods = append(of(o.Namespace).Pods, o)
	}
	for _, o := range events.Items {
		of(o.Namespace).Events = append(of(o.Namespace).Events, o)
	}
	return all, nil
}
