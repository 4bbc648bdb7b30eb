package v1alpha1

import (
	"k8s.io/apimachinery/pkg/runtime"
)

// Migration says who creates and upgrades the outbox schema.
type Migration struct {
	// policy is Job (the operator runs a Job that migrates the schema, and grants
	// the dispatcher's login what it needs) or None. Defaults to Job.
	// +optional
	// +kubebuilder:default=Job
	Policy MigrationPolicy `json:"policy,omitempty"`

	// secret holds the login of the Job; it needs an owner's rights. When neither
	// secret nor user is set: the login of the dispatchers, which must then own the
	// schema.
	// +optional
	Secret *DatabaseSecret `json:"secret,omitempty"`

	// user is the login of the Job. When not set: the one in the Secret.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	User string `json:"user,omitempty"`

	// clientCertificate is the certificate of the Job's login. When not set: that of
	// tls.
	// +optional
	ClientCertificate *ClientCertificate `json:"clientCertificate,omitempty"`

	// podTemplate is merged (as a strategic merge patch) over the pod template that
	// the operator makes for the Job, whose container is named "dispatcher": labels,
	// resources, tolerations, serviceAccountName, imagePullSecrets. When not set: the
	// podTemplate of the dispatcher whose database this is, and for an Outbox none.
	// Then an Outbox's Job runs as the service account "default".
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=object
	PodTemplate *runtime.RawExtension `json:"podTemplate,omitempty"`

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
}

// Overview configures the view outbox.events.
type Overview struct {
	// namespace is the outbox namespace of the events.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="self.matches('^[^\\\\x27\\\\x5c$[:cntrl:]]*$')",message="namespace must not have quotes, backslashes, dollar signs or control characters, because it stands in the text of SQL functions; choose another name"
	Namespace string `json:"namespace,omitempty"`
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
	// payload of a pending event of the same aggregate and type, else it adds one).
	// Defaults to Insert.
	// +optional
	// +kubebuilder:default=Insert
	// +kubebuilder:validation:Enum=Insert;Upsert
	Publish string `json:"publish,omitempty"`
}

// ReplayLogin is the database login with which the Job of a DeadLetterReplay replays and discards dead letters.
//
// +kubebuilder:validation:XValidation:rule="has(self.secret) || has(self.user)",message="replayLogin must have a secret, or a user that needs no password; add one, or remove replayLogin"
type ReplayLogin struct {
	// secret holds the login. When not set: user is used, without a password.
	// +optional
	Secret *DatabaseSecret `json:"secret,omitempty"`

	// user is the login. When not set: the one in the Secret.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	User string `json:"user,omitempty"`

	// clientCertificate is the certificate of the login. When not set: that of tls.
	// +optional
	ClientCertificate *ClientCertificate `json:"clientCertificate,omitempty"`

	// podTemplate is merged (as a strategic merge patch) over the pod template that
	// the operator makes for the Job of a DeadLetterReplay, whose container is named
	// "dispatcher": labels, resources, tolerations, serviceAccountName,
	// imagePullSecrets. When not set: the podTemplate of the dispatcher that the
	// DeadLetterReplay names, and none when it names an Outbox. Then the Job runs as
	// the service account "default".
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=object
	PodTemplate *runtime.RawExtension `json:"podTemplate,omitempty"`
}

// MigrationPolicy says who migrates.
// +kubebuilder:validation:Enum=Job;None
type MigrationPolicy string

const (
	// MigrationJob lets the operator run a Job.
	MigrationJob MigrationPolicy = "Job"
	// MigrationNone leaves the schema to `dispatcher migrate up`.
	MigrationNone MigrationPolicy = "None"
)
