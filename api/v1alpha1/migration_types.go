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

	// secret holds the login that the Job uses; it needs an owner's rights.
	// Without it and without user the Job uses the dispatchers' login, which must
	// then own the schema.
	// +optional
	Secret *DatabaseSecret `json:"secret,omitempty"`

	// user is the login of the Job. When not set: the Secret says it.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	User string `json:"user,omitempty"`

	// clientCertificate is the certificate that the Job's login shows. When not set:
	// that of tls.
	// +optional
	ClientCertificate *ClientCertificate `json:"clientCertificate,omitempty"`

	// podTemplate is merged (as a strategic merge patch) over the Job's pod
	// template that the operator makes, whose container is named "dispatcher":
	// labels, resources, tolerations, serviceAccountName, imagePullSecrets. When
	// not set: the podTemplate of the dispatcher whose database this is, and for
	// an Outbox none. Then an Outbox's Job runs as the service account "default".
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=object
	PodTemplate *runtime.RawExtension `json:"podTemplate,omitempty"`

	// m10 also installs what workers and producers of the M10 outbox contract call,
	// in the schema m10_recovery. Removed from here, it stays in the database. When
	// not set: none.
	// +optional
	M10 *M10 `json:"m10,omitempty"`

	// overview also makes the view outbox.events, on which producers of the Overview
	// outbox contract insert. Removed from here, it stays in the database. When not
	// set: none.
	// +optional
	Overview *Overview `json:"overview,omitempty"`
}

// Overview says which events the view outbox.events is about.
type Overview struct {
	// namespace is that of the events.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="self.matches('^[^\\\\x27\\\\x5c$[:cntrl:]]*$')",message="namespace must not have quotes, backslashes, dollar signs or control characters, because it stands in the text of SQL functions; choose another name"
	Namespace string `json:"namespace,omitempty"`
}

// M10 says which events the M10 functions are about.
type M10 struct {
	// namespace is that of the events which M10 workers claim and publish.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="self.matches('^[^\\\\x27\\\\x5c$[:cntrl:]]*$')",message="namespace must not have quotes, backslashes, dollar signs or control characters, because it stands in the text of SQL functions; choose another name"
	Namespace string `json:"namespace,omitempty"`

	// topic is that of these events. Defaults to m10.
	// +optional
	// +kubebuilder:default=m10
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="self.matches('^[^\\\\x27\\\\x5c$[:cntrl:]]*$')",message="topic must not have quotes, backslashes, dollar signs or control characters, because it stands in the text of SQL functions; choose another name"
	Topic string `json:"topic,omitempty"`

	// publish is Insert (publish_outbox adds an event) or Upsert (it replaces the
	// payload of an event of the same aggregate and type that waits, else it adds
	// one). Defaults to Insert.
	// +optional
	// +kubebuilder:default=Insert
	// +kubebuilder:validation:Enum=Insert;Upsert
	Publish string `json:"publish,omitempty"`
}

// ReplayLogin is the database login with which the Job of a DeadLetterReplay replays and discards dead letters.
//
// +kubebuilder:validation:XValidation:rule="has(self.secret) || has(self.user)",message="replayLogin must have a secret, or a user that needs no password; add one, or remove replayLogin"
type ReplayLogin struct {
	// secret holds the login. When not set: user says it, and there is no password.
	// +optional
	Secret *DatabaseSecret `json:"secret,omitempty"`

	// user is the login. When not set: the Secret says it.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	User string `json:"user,omitempty"`

	// clientCertificate is the certificate that the login shows. When not set: that
	// of tls.
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
	// MigrationNone leaves it to somebody else.
	MigrationNone MigrationPolicy = "None"
)
