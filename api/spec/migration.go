package spec

import "encoding/json"

// MigrationPolicy says who migrates.
// +kubebuilder:validation:Enum=Job;None
type MigrationPolicy string

const (
	// MigrationJob lets the operator run a Job.
	MigrationJob MigrationPolicy = "Job"
	// MigrationNone leaves the schema to `dispatcher migrate up`.
	MigrationNone MigrationPolicy = "None"
)

// Migration says who creates and upgrades the outbox schema.
//
// +kubebuilder:validation:XValidation:rule="!has(self.secretKeys) || has(self.secretRef) && !has(self.secretRef.key)",fieldPath=".secretKeys",message="secretKeys are keys of the Secret in secretRef, which then has no key of its own; set secretRef without key, or remove secretKeys"
// +kubebuilder:validation:XValidation:rule="!has(self.clientKeySecretRef) || has(self.clientCertSecretRef)",fieldPath=".clientKeySecretRef",message="clientKeySecretRef is the key of a certificate; set clientCertSecretRef, or remove clientKeySecretRef"
type Migration struct {
	// policy is Job (the operator runs a Job that migrates the schema, and grants
	// the dispatcher's login what it needs) or None. Defaults to Job.
	// +optional
	// +kubebuilder:default=Job
	Policy MigrationPolicy `json:"policy,omitempty"`

	// secretRef is the Secret with the login of the Job, which needs an owner's
	// rights: see spec.secretRef. When neither secretRef nor user is set: the login of
	// the dispatchers, which must then own the schema.
	// +optional
	SecretRef *SecretRef `json:"secretRef,omitempty"`

	// secretKeys names the keys of that Secret when it holds the parts of the
	// connection instead of a connection string: see spec.secretKeys.
	// +optional
	SecretKeys *ConnectionKeys `json:"secretKeys,omitempty"`

	// user is the login of the Job. When not set: the one in the Secret.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	User string `json:"user,omitempty"`

	// clientCertSecretRef is the Secret with the certificate of the Job's login, in PEM.
	// When its key is not set: tls.crt. When not set: the certificate of tls.
	// +optional
	ClientCertSecretRef *SecretRef `json:"clientCertSecretRef,omitempty"`

	// clientKeySecretRef is the Secret with the key of that certificate, in PEM. When
	// its key is not set: tls.key. When not set: that key of the same Secret.
	// +optional
	ClientKeySecretRef *SecretRef `json:"clientKeySecretRef,omitempty"`

	// podTemplate is merged (as a strategic merge patch) over the pod template that
	// the operator makes for the Job, whose container is named "dispatcher": labels,
	// resources, tolerations, serviceAccountName, imagePullSecrets. When not set:
	// none, and the Job runs as the service account "default".
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=object
	PodTemplate json.RawMessage `json:"podTemplate,omitempty"`

	// m10 also installs the functions of the M10 outbox contract for workers and
	// producers, in the schema m10_recovery. When it is removed here they stay in the
	// database. When not set: none.
	// +optional
	M10 *M10 `json:"m10,omitempty"`

	// overview also creates the view outbox.events, into which producers of the
	// Overview outbox contract insert. When it is removed here the view stays in the
	// database. When not set: none.
	// +optional
	Overview *Overview `json:"overview,omitempty"`

	// tenants is Indexed to also make the index that dispatchers with fairness Tenant
	// need. It takes no lock that producers wait for. When it is removed here the
	// index stays in the database. When not set: none.
	// +optional
	Tenants Tenants `json:"tenants,omitempty"`
}

// ReplayLogin is the database login with which the Job of a DeadLetterReplay replays and discards dead letters.
//
// +kubebuilder:validation:XValidation:rule="has(self.secretRef) || has(self.user)",message="replayLogin must have a secretRef, or a user that needs no password; add one, or remove replayLogin"
// +kubebuilder:validation:XValidation:rule="!has(self.secretKeys) || has(self.secretRef) && !has(self.secretRef.key)",fieldPath=".secretKeys",message="secretKeys are keys of the Secret in secretRef, which then has no key of its own; set secretRef without key, or remove secretKeys"
// +kubebuilder:validation:XValidation:rule="!has(self.clientKeySecretRef) || has(self.clientCertSecretRef)",fieldPath=".clientKeySecretRef",message="clientKeySecretRef is the key of a certificate; set clientCertSecretRef, or remove clientKeySecretRef"
type ReplayLogin struct {
	// secretRef is the Secret with the login: see spec.secretRef. When not set: user
	// is used, without a password.
	// +optional
	SecretRef *SecretRef `json:"secretRef,omitempty"`

	// secretKeys names the keys of that Secret when it holds the parts of the
	// connection instead of a connection string: see spec.secretKeys.
	// +optional
	SecretKeys *ConnectionKeys `json:"secretKeys,omitempty"`

	// user is the login. When not set: the one in the Secret.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	User string `json:"user,omitempty"`

	// clientCertSecretRef is the Secret with the certificate of the login, in PEM.
	// When its key is not set: tls.crt. When not set: the certificate of tls.
	// +optional
	ClientCertSecretRef *SecretRef `json:"clientCertSecretRef,omitempty"`

	// clientKeySecretRef is the Secret with the key of that certificate, in PEM. When
	// its key is not set: tls.key. When not set: that key of the same Secret.
	// +optional
	ClientKeySecretRef *SecretRef `json:"clientKeySecretRef,omitempty"`

	// podTemplate is merged (as a strategic merge patch) over the pod template that
	// the operator makes for the Job of a DeadLetterReplay, whose container is named
	// "dispatcher": labels, resources, tolerations, serviceAccountName,
	// imagePullSecrets. When not set: the pods.template of the dispatcher that the
	// DeadLetterReplay names, and none when it names an Outbox. Then the Job runs as
	// the service account "default".
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=object
	PodTemplate json.RawMessage `json:"podTemplate,omitempty"`
}

// M10 configures the functions of the M10 outbox contract.
type M10 struct {
	// namespace is the outbox namespace of the events that M10 workers claim and
	// publish.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="self.matches('^[^\\\\x27\\\\x5c$[:cntrl:]]*$')",message="namespace must not have quotes, backslashes, dollar signs or control characters, because it stands in the text of SQL functions; choose another name"
	Namespace string `json:"namespace,omitempty"`

	// topic is the topic of these events. Defaults to m10.
	// +optional
	// +kubebuilder:default=m10
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="self.matches('^[^\\\\x27\\\\x5c$[:cntrl:]]*$')",message="topic must not have quotes, backslashes, dollar signs or control characters, because it stands in the text of SQL functions; choose another name"
	Topic string `json:"topic,omitempty"`

	// publish is Insert (publish_outbox adds an event) or Upsert (it replaces the
	// payload of an event of the same aggregate and type that no worker has claimed
	// yet, else it adds one).
	// Defaults to Insert.
	// +optional
	// +kubebuilder:default=Insert
	Publish M10Publish `json:"publish,omitempty"`
}

// M10Publish says what publish_outbox does.
// +kubebuilder:validation:Enum=Insert;Upsert
type M10Publish string

// Values of [M10Publish].
const (
	M10Insert M10Publish = "Insert"
	M10Upsert M10Publish = "Upsert"
)

// Overview configures the view outbox.events.
type Overview struct {
	// namespace is the outbox namespace of the events.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="self.matches('^[^\\\\x27\\\\x5c$[:cntrl:]]*$')",message="namespace must not have quotes, backslashes, dollar signs or control characters, because it stands in the text of SQL functions; choose another name"
	Namespace string `json:"namespace,omitempty"`
}

// Tenants says what the database has for fairness.
// +kubebuilder:validation:Enum=Indexed
type Tenants string

// TenantsIndexed is an index of the events that wait, by tenant.
const TenantsIndexed Tenants = "Indexed"
