package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Outbox is the database of a transactional outbox: how to reach it, who migrates its schema, and how
// long rows are kept. OutboxDispatchers of the same Kubernetes namespace refer to it by spec.outboxRef.
// The operator runs one migration Job for it, and reports here what its dispatchers see.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=outboxes,shortName=ob,categories=outbox
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Schema",type=integer,JSONPath=`.status.schemaVersion`,description="Version of the outbox schema"
// +kubebuilder:printcolumn:name="Dispatchers",type=integer,JSONPath=`.status.dispatcherCount`,description="OutboxDispatchers that refer to it"
// +kubebuilder:printcolumn:name="Pending",type=integer,JSONPath=`.status.pending`,description="Rows due now, of all dispatchers"
// +kubebuilder:printcolumn:name="Dead",type=integer,JSONPath=`.status.dead`,description="Dead rows that no person has handled yet, of all dispatchers"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`,priority=1
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 48 && !self.metadata.name.contains('.')",message="metadata.name must be at most 48 characters without dots, because it becomes part of the names of jobs; choose another name"
type Outbox struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec is what is wanted.
	// +required
	Spec OutboxObjectSpec `json:"spec,omitzero"`

	// status is what was observed.
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

// OutboxObjectSpec is the spec of an Outbox: its database, and the tables of services that are adopted into it.
//
// +kubebuilder:validation:XValidation:rule="!has(self.adopt) || has(self.migration) && self.migration.policy == 'Job'",fieldPath=".adopt",message="adopt is carried out with the login of the migration; add migration with policy Job, or remove adopt and run dispatcher adopt"
type OutboxObjectSpec struct {
	OutboxSpec `json:",inline"`

	// adopt are outbox tables that services have of their own, and that are taken
	// over without a change to their producers. At most 8.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=8
	Adopt []Adoption `json:"adopt,omitempty"`
}

// OutboxSpec says how to reach the outbox's PostgreSQL, and what becomes of its tables. It is the spec of
// an Outbox, with what it adopts, and spec.database of an OutboxDispatcher that has a database of its own.
//
// +kubebuilder:validation:XValidation:rule="has(self.secret) || has(self.server) && has(self.user) && (has(self.iam) || has(self.tls) && has(self.tls.clientCertificate))",message="a database needs a secret, or server and user with iam or tls.clientCertificate, which need no password; add what is missing"
// +kubebuilder:validation:XValidation:rule="!has(self.secret) || !has(self.secret.dsnKey) || !(has(self.server) || has(self.user))",message="server and user take the place of keys of the Secret, and a connection string has none; remove secret.dsnKey, or server and user"
// +kubebuilder:validation:XValidation:rule="!has(self.iam) || !has(self.tls) || !has(self.tls.mode) || !(self.tls.mode in ['disable', 'prefer'])",fieldPath=".tls",message="tls must not have the mode disable or prefer with iam, whose token is for connections with TLS; set mode to require or verify-full, or leave it out with a ca"
// +kubebuilder:validation:XValidation:rule="!has(self.migration) || !has(self.migration.user) || (has(self.migration.secret) ? !has(self.migration.secret.dsnKey) : has(self.server) && (has(self.iam) || has(self.migration.clientCertificate) || has(self.tls) && has(self.tls.clientCertificate)))",fieldPath=".migration",message="migration.user must have a secret without dsnKey, or server and iam or a clientCertificate to log in with; add what is missing, or remove user"
// +kubebuilder:validation:XValidation:rule="!has(self.journal) || has(self.migration) && self.migration.policy == 'Job'",fieldPath=".journal",message="journal is set by the migration Job; add migration with policy Job, or remove journal and run dispatcher migrate up with journal in its file"
// +kubebuilder:validation:XValidation:rule="!has(self.replayLogin) || !has(self.replayLogin.user) || (has(self.replayLogin.secret) ? !has(self.replayLogin.secret.dsnKey) : has(self.server) && (has(self.iam) || has(self.replayLogin.clientCertificate) || has(self.tls) && has(self.tls.clientCertificate)))",fieldPath=".replayLogin",message="replayLogin.user must have a secret without dsnKey, or server and iam or a clientCertificate to log in with; add what is missing, or remove user"
type OutboxSpec struct {
	// secret holds the dispatcher's login. It needs only the rights that
	// `dispatcher migrate grants` prints. When not set: server and user say what
	// there is to say, and there is no password.
	// +optional
	Secret DatabaseSecret `json:"secret,omitzero"`

	// server is where the database is, for a Secret that does not say it. When not
	// set: the Secret says it.
	// +optional
	Server *DatabaseServer `json:"server,omitempty"`

	// user is the dispatcher's login. When not set: the Secret says it.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	User string `json:"user,omitempty"`

	// iam makes the password of each connection from the pod's identity in a cloud:
	// see spec.serviceAccount of an OutboxDispatcher. When not set: the Secret has
	// it.
	// +optional
	IAM *DatabaseIAM `json:"iam,omitempty"`

	// schema is the PostgreSQL schema of the outbox tables. Defaults to outbox.
	// +optional
	// +kubebuilder:default=outbox
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z_][a-z0-9_]*$') && !self.startsWith('pg_')",message="schema must be a name of lower-case letters, digits and underscores, that starts with a letter or an underscore and not with pg_; such as outbox"
	Schema string `json:"schema,omitempty"`

	// tls says how the connection is secured.
	// +optional
	TLS *DatabaseTLS `json:"tls,omitempty"`

	// migration says who creates and upgrades the schema. Without it the operator
	// does not: run `dispatcher migrate up` yourself.
	// +optional
	Migration *Migration `json:"migration,omitempty"`

	// replayLogin is the login of DeadLetterReplays: the one that `dispatcher migrate
	// grants --for replay` is for. When not set: none may run.
	// +optional
	ReplayLogin *ReplayLogin `json:"replayLogin,omitempty"`

	// retention says how long rows are kept. That of an Outbox is for all rows of its
	// tables; that of a dispatcher with a database of its own is for the rows of its
	// namespace and topics.
	// +optional
	// +kubebuilder:default={delivered: "168h"}
	Retention Retention `json:"retention,omitzero"`

	// journal records each change of an event's row in the database, for audits. The
	// migration Job turns it on and off. When not set: it stays as it is, which is off
	// in a new schema.
	// +optional
	Journal *Journal `json:"journal,omitempty"`
}

// Retention says how long rows are kept. The dispatchers remove them, one pod at a time, every 24th of the shortest
// time, from once a minute to once in 6 hours.
type Retention struct {
	// delivered is how long a delivered row is kept, and its dedupe key remembered.
	// With 0s a row is deleted as soon as it is delivered, instead of being marked
	// so. From 0s to 87600h (10 years). Defaults to 168h.
	// +optional
	// +kubebuilder:default="168h"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) <= duration('87600h')",message="delivered must be a duration from 0s, which deletes a row as soon as it is delivered, to 87600h, such as 168h for 7 days"
	Delivered *metav1.Duration `json:"delivered,omitempty"`

	// deadResolved is how long a dead row is kept after a person has resolved its
	// last death, with the records of its deaths. From 1h to 87600h. Defaults to
	// 720h.
	// +optional
	// +kubebuilder:default="720h"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1h') && duration(self) <= duration('87600h')",message="deadResolved must be a duration from 1h to 87600h, such as 720h for 30 days"
	DeadResolved metav1.Duration `json:"deadResolved,omitzero"`

	// deadUnresolved is how long a dead row is kept that nobody has resolved. Then
	// the record of its death is resolved as expired, and kept for deadResolved.
	// With onDead Block a row that has a key is kept nevertheless, because a person
	// frees a key. From 1h to 87600h. When not set: for ever.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1h') && duration(self) <= duration('87600h')",message="deadUnresolved must be a duration from 1h to 87600h, such as 2160h for 90 days; leave it out to keep for ever what nobody has resolved"
	DeadUnresolved *metav1.Duration `json:"deadUnresolved,omitempty"`
}

// OutboxRef names an Outbox in the same Kubernetes namespace.
type OutboxRef struct {
	// name is the Outbox's name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=48
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Label().validate(self).hasValue()",message="name must be the name of an Outbox: lower-case letters, digits and dashes, such as orders"
	Name string `json:"name,omitempty"`
}

// OutboxStatus is what was observed. The operator opens no connection to the database: what is known comes
// from the migration Job, and from the dispatchers.
type OutboxStatus struct {
	// observedGeneration is the generation that this status is about, -1 when the
	// operator has not looked at the object yet.
	// +optional
	// +kubebuilder:validation:Minimum=-1
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions say what works: Ready (dispatchers can work with the outbox),
	// ReferencesResolved, SchemaReady, SourceReachable, DataHealthy, Adopted; and what
	// does not: VacuumHeldBack, TopicsShared, Reconciling, Stalled. Reason is the cause
	// in one word, message a sentence with the remedy.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// migration is where the migration Job stands: Running, Failed (until an
	// attempt succeeds) or Succeeded. Absent when the operator does not migrate.
	// +optional
	// +kubebuilder:validation:Enum=Running;Failed;Succeeded
	Migration string `json:"migration,omitempty"`

	// schemaVersion is the version of the schema that a dispatcher has seen last.
	// +optional
	// +kubebuilder:validation:Minimum=0
	SchemaVersion *int64 `json:"schemaVersion,omitempty"`

	// dispatcherCount counts the OutboxDispatchers that refer to it.
	// +optional
	// +kubebuilder:validation:Minimum=0
	DispatcherCount int32 `json:"dispatcherCount"`

	// dispatchers are those that refer to it, the first 64 by name.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Dispatchers []OutboxUser `json:"dispatchers,omitempty"`

	// pending counts the rows that are due now, of all dispatchers. Above 10000 it
	// is an estimate. While topics are shared (see TopicsShared), their rows count
	// for each dispatcher.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Pending *int64 `json:"pending,omitempty"`

	// dead counts the dead rows that no person has handled yet, of all dispatchers.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Dead *int64 `json:"dead,omitempty"`

	// retention is what was removed after spec.retention.
	// +optional
	Retention *RetentionStatus `json:"retention,omitempty"`

	// adoptions are those of spec.adopt, and those that were taken out of it after
	// their cutover, which are still cut over.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	Adoptions []AdoptionStatus `json:"adoptions,omitempty"`

	// backlog is what waits in each outbox namespace that a dispatcher has counted,
	// the first 64 by name.
	// +optional
	// +listType=map
	// +listMapKey=namespace
	// +kubebuilder:validation:MaxItems=64
	Backlog []NamespaceBacklog `json:"backlog,omitempty"`
}

// RetentionStatus is what was removed, as of the end of the last run.
type RetentionStatus struct {
	// lastRun is when the last whole run ended, on the database's clock. While runs
	// remove nothing it may be ten minutes behind.
	// +optional
	LastRun *metav1.Time `json:"lastRun,omitempty"`

	// nextRun is when the next run was due, as of then.
	// +optional
	NextRun *metav1.Time `json:"nextRun,omitempty"`

	// delivered counts the delivered rows that were removed, ever, without those
	// that were deleted as soon as they were delivered.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Delivered int64 `json:"delivered"`

	// dead counts the dead rows that were removed, ever: resolved, or expired.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Dead int64 `json:"dead"`

	// expired counts the deaths that nobody has resolved and deadUnresolved did,
	// ever.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Expired int64 `json:"expired"`
}

// OutboxUser is an OutboxDispatcher that refers to an Outbox.
type OutboxUser struct {
	// name is the OutboxDispatcher's.
	// +required
	// +kubebuilder:validation:MaxLength=48
	Name string `json:"name,omitempty"`

	// namespace is the outbox namespace whose events it delivers.
	// +required
	// +kubebuilder:validation:MaxLength=255
	Namespace string `json:"namespace,omitempty"`

	// topics are those that it delivers, the first 16. Empty means all.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=255
	Topics []string `json:"topics,omitempty"`
}

// NamespaceBacklog is what waits in an outbox namespace.
type NamespaceBacklog struct {
	// namespace is the outbox namespace.
	// +required
	// +kubebuilder:validation:MaxLength=255
	Namespace string `json:"namespace,omitempty"`

	// pending counts the rows that are due now.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Pending int64 `json:"pending"`

	// dead counts the dead rows that no person has handled yet.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Dead int64 `json:"dead"`

	// oldestPending is the creation time of the pending row that is due first.
	// +optional
	OldestPending *metav1.Time `json:"oldestPending,omitempty"`
}
