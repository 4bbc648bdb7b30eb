package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outbox-operator/outbox-operator/api/spec"

	"github.com/outbox-operator/outbox-operator/api/status"
)

// Outbox is the database of a transactional outbox: how to reach it, who migrates its schema, and how
// long rows are kept. OutboxDispatchers of the same Kubernetes namespace refer to it by spec.outboxRef.
// The operator runs one migration Job for it, and reports here what its dispatchers see.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=outboxes,shortName=ob,categories=outbox-operator
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Schema",type=integer,JSONPath=`.status.schemaVersion`,description="Version of the outbox schema"
// +kubebuilder:printcolumn:name="Dispatchers",type=integer,JSONPath=`.status.dispatcherCount`,description="OutboxDispatchers that refer to it"
// +kubebuilder:printcolumn:name="Pending",type=integer,JSONPath=`.status.pending`,description="Rows due now, of all dispatchers"
// +kubebuilder:printcolumn:name="Dead",type=integer,JSONPath=`.status.dead`,description="Unresolved dead rows, of all dispatchers"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`,priority=1
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 48 && !self.metadata.name.contains('.')",message="metadata.name must be at most 48 characters without dots, because it becomes part of the names of jobs; choose another name"
type Outbox struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec is the desired state.
	// +required
	Spec OutboxSpec `json:"spec,omitzero"`

	// status is the observed state.
	// +optional
	// +kubebuilder:default={"observedGeneration":-1}
	Status OutboxStatus `json:"status,omitzero"`
}

// OutboxList is a list of Outboxes.
//
// +kubebuilder:object:root=true
type OutboxList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitzero"`
	Items           []Outbox `json:"items"`
}

// OutboxSpec says how to connect to the outbox's PostgreSQL, who migrates it, and how long rows are kept.
//
// +kubebuilder:validation:XValidation:rule="has(self.secretRef) || has(self.server) && has(self.user) && (has(self.iam) || has(self.tls) && has(self.tls.clientCertSecretRef))",message="a database needs a secretRef, or server and user with iam or tls.clientCertSecretRef, which need no password; add what is missing"
// +kubebuilder:validation:XValidation:rule="has(self.secretRef) ? !has(self.secretRef.key) || !(has(self.server) || has(self.user) || has(self.secretKeys)) : !has(self.secretKeys)",message="secretKeys, server and user are for a Secret that holds the parts of a connection, and secretRef.key is that of a connection string; remove secretRef.key, or the others"
// +kubebuilder:validation:XValidation:rule="!has(self.iam) || !has(self.tls) || !has(self.tls.mode) || !(self.tls.mode in ['Disable', 'Prefer'])",fieldPath=".tls",message="tls must not have the mode Disable or Prefer with iam, whose token is for connections with TLS; set mode to Require or VerifyFull, or leave it out with certificates"
// +kubebuilder:validation:XValidation:rule="!has(self.iam) || has(self.tls) && (has(self.tls.mode) || has(self.tls.caSecretRef) || has(self.tls.caConfigMapRef)) || !(has(self.server) || has(self.user) || has(self.secretKeys) || has(self.migration) && (has(self.migration.user) || has(self.migration.secretKeys)) || has(self.replayLogin) && (has(self.replayLogin.user) || has(self.replayLogin.secretKeys)))",fieldPath=".tls",message="tls must have the mode Require, caSecretRef or caConfigMapRef with iam and without a connection string, because a token is never sent without TLS; set one of them"
// +kubebuilder:validation:XValidation:rule="!has(self.migration) || !has(self.migration.user) || (has(self.migration.secretRef) ? !has(self.migration.secretRef.key) : has(self.server) && (has(self.iam) || has(self.migration.clientCertSecretRef) || has(self.tls) && has(self.tls.clientCertSecretRef)))",fieldPath=".migration",message="migration.user must have a secretRef without key, or server and iam or a clientCertSecretRef to log in with; add what is missing, or remove user"
// +kubebuilder:validation:XValidation:rule="!has(self.journal) || has(self.migration) && self.migration.policy == 'Job'",fieldPath=".journal",message="journal is set by the migration Job; add migration with policy Job, or remove journal and run dispatcher migrate up with journal in its file"
// +kubebuilder:validation:XValidation:rule="!has(self.replayLogin) || !has(self.replayLogin.user) || (has(self.replayLogin.secretRef) ? !has(self.replayLogin.secretRef.key) : has(self.server) && (has(self.iam) || has(self.replayLogin.clientCertSecretRef) || has(self.tls) && has(self.tls.clientCertSecretRef)))",fieldPath=".replayLogin",message="replayLogin.user must have a secretRef without key, or server and iam or a clientCertSecretRef to log in with; add what is missing, or remove user"
type OutboxSpec struct {
	// secretRef is the Secret with the login of the dispatchers. It needs only the
	// rights that `dispatcher migrate grants` prints. Its key holds a connection
	// string, as a URL or as key=value words; when the key is not set: dsn. Of several
	// hosts the one that accepts writes is used, also after a failover. When not set:
	// server and user are used, without a password.
	// +optional
	SecretRef spec.SecretRef `json:"secretRef,omitzero"`

	// secretKeys names the keys of that Secret when it holds the parts of the
	// connection, as database operators make them. `secretKeys: {}` fits those of
	// CloudNativePG; with server also those of Zalando's operator, which hold only
	// username and password. When not set: {} with a server or a user, else the
	// Secret holds a connection string.
	// +optional
	SecretKeys *spec.ConnectionKeys `json:"secretKeys,omitempty"`

	// server is the address of the database, for a Secret that does not hold it. When
	// not set: the one in the Secret.
	// +optional
	Server *spec.DatabaseServer `json:"server,omitempty"`

	// user is the login of the dispatchers. When not set: the one in the Secret.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	User string `json:"user,omitempty"`

	// iam makes the password of each connection from the pod's identity in a cloud:
	// see spec.pods.serviceAccount of an OutboxDispatcher. When not set: the password is
	// the one in the Secret.
	// +optional
	IAM *spec.IAM `json:"iam,omitempty"`

	// schema is the PostgreSQL schema of the outbox tables. Defaults to outbox.
	// +optional
	// +kubebuilder:default=outbox
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z_][a-z0-9_]*$') && !self.startsWith('pg_')",message="schema must be a name of lower-case alphanumeric characters and underscores, that does not start with a digit or pg_, such as outbox"
	Schema string `json:"schema,omitempty"`

	// tls configures TLS for the connections.
	// +optional
	TLS *DatabaseTLS `json:"tls,omitempty"`

	// migration says who creates and upgrades the schema. When not set: the operator
	// does not; run `dispatcher migrate up` yourself.
	// +optional
	Migration *Migration `json:"migration,omitempty"`

	// replayLogin is the login of DeadLetterReplays. Its rights are those of
	// `dispatcher migrate grants --for replay`. When not set: no DeadLetterReplay can
	// run.
	// +optional
	ReplayLogin *ReplayLogin `json:"replayLogin,omitempty"`

	// retention says how long rows of the outbox's tables are kept.
	// +optional
	// +kubebuilder:default={delivered: "168h"}
	Retention Retention `json:"retention,omitzero"`

	// journal records each change of an event's row in the database, for audits. The
	// migration Job turns it on and off. When not set: it is left as it is, which is
	// off in a new schema.
	// +optional
	Journal *spec.Journal `json:"journal,omitempty"`

	// notify is an address that is notified of each dead letter of the outbox's
	// dispatchers, by a CloudEvent over HTTP. When not set: none.
	// +optional
	Notify *Notify `json:"notify,omitempty"`
}

// Retention says how long rows are kept. The dispatchers remove them, one pod at a time. The interval between runs is a
// 24th of the shortest retention, from one minute to 6 hours.
type Retention struct {
	// delivered is how long a delivered row is kept, and its dedupe key is remembered.
	// With 0s a row is deleted when it is delivered. From 0s to 87600h (10 years).
	// Defaults to 168h.
	// +optional
	// +kubebuilder:default="168h"
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) <= duration('87600h')",message="delivered must be a duration from 0s, which deletes a row as soon as it is delivered, to 87600h, such as 168h for 7 days"
	Delivered *spec.Duration `json:"delivered,omitempty"`

	// deadResolved is how long a dead row and its dead letters are kept after a person
	// has resolved the last of these. From 1h to 87600h. Defaults to 720h.
	// +optional
	// +kubebuilder:default="720h"
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1h') && duration(self) <= duration('87600h')",message="deadResolved must be a duration from 1h to 87600h, such as 720h for 30 days"
	DeadResolved spec.Duration `json:"deadResolved,omitzero"`

	// deadUnresolved is how long an unresolved dead row is kept. After that its
	// dead letter is resolved as expired, and kept for deadResolved. With onDead Block
	// a row that has a key is kept anyway, because only a person unblocks a key. From
	// 1h to 87600h. When not set: for ever.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1h') && duration(self) <= duration('87600h')",message="deadUnresolved must be a duration from 1h to 87600h, such as 2160h for 90 days; leave it out to keep unresolved rows for ever"
	DeadUnresolved spec.Duration `json:"deadUnresolved,omitzero"`
}

// OutboxStatus is the observed state of an Outbox. The operator does not connect to the database: it reads the results
// of the migration Job and the status of the dispatchers.
type OutboxStatus struct {
	// observedGeneration is the generation that the operator observed last. It is -1
	// before the first observation.
	// +optional
	// +kubebuilder:validation:Minimum=-1
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// operator is the namespace of the operator that manages this object. Another one
	// leaves the object alone, until this is null.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Operator string `json:"operator,omitempty"`

	// conditions say what works, such as Ready and SourceReachable, and what does not, such
	// as Stalled. Reason is the cause in one word, message a sentence with the remedy.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// migration is the state of the migration Job: Running, Failed (until an attempt
	// succeeds) or Succeeded. Absent when the operator does not migrate.
	// +optional
	// +kubebuilder:validation:Enum=Running;Failed;Succeeded
	Migration string `json:"migration,omitempty"`

	// schemaVersion is the version of the schema that a dispatcher saw last.
	// +optional
	// +kubebuilder:validation:Minimum=0
	SchemaVersion *int64 `json:"schemaVersion,omitempty"`

	// dispatcherCount is the number of OutboxDispatchers that refer to the Outbox.
	// +optional
	// +kubebuilder:validation:Minimum=0
	DispatcherCount *int32 `json:"dispatcherCount,omitempty"`

	// dispatchers are the OutboxDispatchers that refer to the Outbox, the first 64 by
	// name.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Dispatchers []OutboxUser `json:"dispatchers,omitempty"`

	// pending is the number of rows that are due now, over all dispatchers. Above
	// 10000 it is an estimate. Rows of shared topics (see TopicsShared) are counted
	// for each dispatcher.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Pending *int64 `json:"pending,omitempty"`

	// dead is the number of unresolved dead rows, over all dispatchers.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Dead *int64 `json:"dead,omitempty"`

	// retention is what was removed under spec.retention.
	// +optional
	Retention *status.RetentionTotals `json:"retention,omitempty"`

	// backlog is the backlog of each outbox namespace that a dispatcher has counted,
	// the first 64 by name.
	// +optional
	// +listType=map
	// +listMapKey=namespace
	// +kubebuilder:validation:MaxItems=64
	Backlog []NamespaceBacklog `json:"backlog,omitempty"`
}

// OutboxUser is an OutboxDispatcher that refers to an Outbox.
type OutboxUser struct {
	// name is the name of the OutboxDispatcher.
	// +required
	// +kubebuilder:validation:MaxLength=48
	Name string `json:"name,omitempty"`

	// namespace is the outbox namespace whose events it delivers.
	// +required
	// +kubebuilder:validation:MaxLength=255
	Namespace string `json:"namespace,omitempty"`

	// topics are the topics that it delivers, the first 16. Empty means all.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=255
	Topics []string `json:"topics,omitempty"`
}

// NamespaceBacklog is the backlog of an outbox namespace.
type NamespaceBacklog struct {
	// namespace is the outbox namespace.
	// +required
	// +kubebuilder:validation:MaxLength=255
	Namespace string `json:"namespace,omitempty"`

	// pending is the number of rows that are due now.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Pending int64 `json:"pending"`

	// dead is the number of unresolved dead rows.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Dead int64 `json:"dead"`

	// oldestPending is the creation time of the pending row that is due first.
	// +optional
	OldestPending status.Time `json:"oldestPending,omitzero"`
}
