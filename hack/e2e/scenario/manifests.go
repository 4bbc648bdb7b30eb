package scenario

import (
	"fmt"
	"strings"
)

// Manifests are the namespace, the Secrets and the OutboxDispatcher of the story: what a platform
// engineer writes.
type Manifests struct {
	// Namespace and Name of the Kubernetes objects.
	Namespace, Name string
	// DispatcherDSN and OwnerDSN are as pods see the database.
	DispatcherDSN, OwnerDSN string
	// SinkURL is where events go, as pods see it.
	SinkURL string
	// Replicas is the number of pods.
	Replicas int
}

// Secrets are the namespace and the two logins.
func (m Manifests) Secrets() string {
	return fmt.Sprintf(`apiVersion: v1
kind: Namespace
metadata:
  name: %[1]s
  labels:
    pod-security.kubernetes.io/enforce: restricted
---
apiVersion: v1
kind: Secret
metadata: {name: %[2]s-db, namespace: %[1]s}
stringData: {dsn: %[3]q}
---
apiVersion: v1
kind: Secret
metadata: {name: %[2]s-db-owner, namespace: %[1]s}
stringData: {dsn: %[4]q}
`, m.Namespace, m.Name, m.DispatcherDSN, m.OwnerDSN)
}

// Dispatcher is the OutboxDispatcher. Its lease is short, so that a story about a crash is short too.
func (m Manifests) Dispatcher() string {
	return fmt.Sprintf(`apiVersion: outbox.dev/v1alpha1
kind: OutboxDispatcher
metadata: {name: %[2]s, namespace: %[1]s}
spec:
  namespace: shop            # whose events: the outbox namespace,
  topics: [orders]           # and its topics
  database:
    secretRef: {name: %[2]s-db}
    migrationSecretRef: {name: %[2]s-db-owner}
  sink:
    http: {url: %[3]q}
  replicas: %[4]d
  delivery:
    lease: 6s
    pollInterval: 1s
    maxAttempts: 3
    backoff: {base: 1s, max: 2s}
`, m.Namespace, m.Name, m.SinkURL, m.Replicas)
}

// Indent shifts a manifest to the right, for printing.
func Indent(text string) string {
	return "    " + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n    ") + "\n"
}
