package spec

// OutboxRef names an Outbox in the same Kubernetes namespace.
type OutboxRef struct {
	// name is the Outbox's name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=48
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Label().validate(self).hasValue()",message="name must be the name of an Outbox: lower-case alphanumeric characters and dashes, such as orders"
	Name string `json:"name,omitempty"`
}

// Outbox says how to connect to the outbox's PostgreSQL, who migrates it, and how long rows are kept.
//
// +kubebuilder:validation:XValidation:rule="has(self.secretRef) || has(self.server) && has(self.user) && (has(self.iam) || has(self.tls) && has(self.tls.clientCertSecretRef))",message="a database needs a secretRef, or server and user with iam or tls.clientCertSecretRef, which need no password; add what is missing"
// +kubebuilder:validation:XValidation:rule="has(self.secretRef) ? !has(self.secretRef.key) || !(has(self.server) || has(self.user) || has(self.secretKeys)) : !has(self.secretKeys)",message="secretKeys, server and user are for a Secret that holds the parts of a connection, and secretRef.key is that of a connection string; remove secretRef.key, or the others"
// +kubebuilder:validation:XValidation:rule="!has(self.iam) || !has(self.tls) || !has(self.tls.mode) || !(self.tls.mode in ['Disable', 'Prefer'])",fieldPath=".tls",message="tls must not have the mode Disable or Prefer with iam, whose token is for connections with TLS; set mode to Require or VerifyFull, or leave it out with certificates"
// +kubebuilder:validation:XValidation:rule="!has(self.iam) || has(self.tls) && (has(self.tls.mode) || has(self.tls.caSecretRef) || has(self.tls.caConfigMapRef)) || !(has(self.server) || has(self.user) || has(self.secretKeys) || has(self.migration) && (has(self.migration.user) || has(self.migration.secretKeys)) || has(self.replayLogin) && (has(self.replayLogin.user) || has(self.replayLogin.secretKeys)))",fieldPath=".tls",message="tls must have the mode Require, caSecretRef or caConfigMapRef with iam and without a connection string, because a token is never sent without TLS; set one of them"
// +kubebuilder:validation:XValidation:rule="!has(self.migration) || !has(self.migration.user) || (has(self.migration.secretRef) ? !has(self.migration.secretRef.key) : has(self.server) && (has(self.iam) || has(self.migration.clientCertSecretRef) || has(self.tls) && has(self.tls.clientCertSecretRef)))",fieldPath=".migration",message="migration.user must have a secretRef without key, or server and iam or a clientCertSecretRef to log in with; add what is missing, or remove user"
// +kubebuilder:validation:XValidation:rule="!has(self.journal) || has(self.migration) && self.migration.policy == 'Job'",fieldPath=".journal",message="journal is set by the migration Job; add migration with policy Job, or remove journal and run dispatcher migrate up with journal in its file"
// +kubebuilder:validation:XValidation:rule="!has(self.replayLogin) || !has(self.replayLogin.user) || (has(self.replayLogin.secretRef) ? !has(self.replayLogin.secretRef.key) : has(self.server) && (has(self.iam) || has(self.replayLogin.clientCertSecretRef) || has(self.tls) && has(self.tls.clientCertSecretRef)))",fieldPath=".replayLogin",message="replayLogin.user must have a secretRef without key, or server and iam or a clientCertSecretRef to log in with; add what is missing, or remove user"
type Outbox struct {
	// secretRef is the Secret with the login of the dispatchers. It needs only the
	// rights that `dispatcher migrate grants` prints. Its key holds a connection
	// string, as a URL or as key=value words; when the key is not set: dsn. Of several
	// hosts the one that accepts writes is used, also after a failover. When not set:
	// server and user are used, without a password.
	// +optional
	SecretRef SecretRef `json:"secretRef,omitzero"`

	// secretKeys names the keys of that Secret when it holds the parts of the
	// connection, as database operators make them. `secretKeys: {}` fits those of
	// CloudNativePG; with server also those of Zalando's operator, which hold only
	// username and password. When not set: {} with a server or a user, else the
	// Secret holds a connection string.
	// +optional
	SecretKeys *ConnectionKeys `json:"secretKeys,omitempty"`

	// server is the address of the database, for a Secret that does not hold it. When
	// not set: the one in the Secret.
	// +optional
	Server *DatabaseServer `json:"server,omitempty"`

	// user is the login of the dispatchers. When not set: the one in the Secret.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	User string `json:"user,omitempty"`

	// iam makes the password of each connection from the pod's identity in a cloud:
	// see spec.pods.serviceAccount of an OutboxDispatcher. When not set: the password is
	// the one in the Secret.
	// +optional
	IAM *IAM `json:"iam,omitempty"`

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
	Journal *Journal `json:"journal,omitempty"`

	// notify is an address that is notified of each dead letter of the outbox's
	// dispatchers, by a CloudEvent over HTTP. When not set: none.
	// +optional
	Notify *Notify `json:"notify,omitempty"`
}
