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
// +kubebuilder:validation:XValidation:rule="!has(self.journal) || has(self.migration) && self.migration.policy == 'Job'",fieldPath=".journal",message="journal is set by the migration Job; add migration with policy Job, or remove journal"
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
	// `dispatcher migrate grants --for replay`, which the migration grants when there
	// is one. When not set: no DeadLetterReplay can run.
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

// Retention says how long rows are kept. The dispatchers remove them, one pod at a time. The interval between runs is a
// 24th of the shortest retention, from one minute to 6 hours.
type Retention struct {
	// delivered is how long a delivered row is kept, and its dedupe key is remembered.
	// With 0s a row is deleted when it is delivered. From 0s to 87600h (10 years).
	// Defaults to 168h.
	// +optional
	// +kubebuilder:default="168h"
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) <= duration('87600h')",message="delivered must be a duration from 0s, which deletes a row as soon as it is delivered, to 87600h, such as 168h for 7 days"
	Delivered *Duration `json:"delivered,omitempty"`

	// deadResolved is how long a dead row and its dead letters are kept after a person
	// has resolved the last of these. From 1h to 87600h. Defaults to 720h.
	// +optional
	// +kubebuilder:default="720h"
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1h') && duration(self) <= duration('87600h')",message="deadResolved must be a duration from 1h to 87600h, such as 720h for 30 days"
	DeadResolved Duration `json:"deadResolved,omitzero"`

	// deadUnresolved is how long an unresolved dead row is kept. After that its
	// dead letter is resolved as expired, and kept for deadResolved. With onDead Block
	// a row that has a key is kept anyway, because only a person unblocks a key. From
	// 1h to 87600h. When not set: for ever.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1h') && duration(self) <= duration('87600h')",message="deadUnresolved must be a duration from 1h to 87600h, such as 2160h for 90 days; leave it out to keep unresolved rows for ever"
	DeadUnresolved Duration `json:"deadUnresolved,omitzero"`

	// Scope says whose rows are removed: those of a dispatcher that has a database of its own, else the Outbox's.
	Scope RetentionScope `json:"-"`
}

// RetentionScope says whose rows a retention is about.
type RetentionScope string

// Values of [RetentionScope].
const (
	ScopeDispatcher RetentionScope = "Dispatcher"
	ScopeOutbox     RetentionScope = "Outbox"
)

// DeletesAtAck reports whether rows are deleted as soon as they are delivered.
func (r Retention) DeletesAtAck() bool { return r.Delivered != nil && *r.Delivered == 0 }

// Journal says whether changes of events are recorded. A record has the status before and after, the attempt, the
// lease, the worker and the login, the transaction and the position in the database's WAL; never a payload.
type Journal struct {
	// mode is Enabled or Disabled. Enabled, an event writes about twice as much WAL.
	// Disabled, existing records are kept for retention.
	// +required
	Mode JournalMode `json:"mode,omitempty"`

	// retention is the least time that a record is kept; records are removed by the
	// day. From 24h to 87600h. Defaults to 168h.
	// +optional
	// +kubebuilder:default="168h"
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('24h') && duration(self) <= duration('87600h')",message="retention must be a duration from 24h to 87600h, such as 168h for 7 days"
	Retention Duration `json:"retention,omitzero"`
}

// JournalMode says whether changes are recorded.
// +kubebuilder:validation:Enum=Enabled;Disabled
type JournalMode string

const (
	// JournalEnabled records each change.
	JournalEnabled JournalMode = "Enabled"
	// JournalDisabled records none.
	JournalDisabled JournalMode = "Disabled"
)

// Notify is an address that is notified of each dead letter. A response of 2xx accepts the notification; after any
// other it is retried for a day.
//
// +kubebuilder:validation:XValidation:rule="!has(self.tls) || self.url.startsWith('https://') && [has(self.tls.caSecretRef), has(self.tls.caConfigMapRef), has(self.tls.clientCertSecretRef), has(self.tls.serverName)].exists(set, set)",fieldPath=".tls",message="tls is for an https:// url, and must have caSecretRef, caConfigMapRef, clientCertSecretRef or serverName; change url, add what the server needs, or remove tls"
// +kubebuilder:validation:XValidation:rule="!has(self.auth) || self.auth.type in ['Basic', 'Token']",fieldPath=".auth.type",message="type must be Basic or Token, as HTTP has them; choose one of these"
type Notify struct {
	// url is the http or https URL that notifications are posted to, without user or
	// password.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="isURL(self) && self.matches('^https?://[^/?#:@][^/?#@]*([/?#].*)?$')",message="url must be an http:// or https:// URL with a host, such as https://oncall.example.com/dead-letters, and hold no user or password, because everybody may read it; put credentials into a Secret and name it in auth"
	URL string `json:"url,omitempty"`

	// auth is the login of every request, of type Basic or Token. When not set: none.
	// +optional
	Auth *Auth `json:"auth,omitempty"`

	// signingSecretRef is the Secret that every request is signed with, as the
	// Standard Webhooks specification says: one secret per line, whsec_ and 24 to 64
	// random bytes in base64. Each makes a signature, so that consumers can change
	// from one to the next. Its key, when not set: secret. When not set: requests are
	// not signed.
	// +optional
	SigningSecretRef *SecretRef `json:"signingSecretRef,omitempty"`

	// tls configures the certificates of an https url.
	// +optional
	TLS *TLS `json:"tls,omitempty"`

	// SigningSecretFile has what signingSecretRef names, where a process reads it.
	SigningSecretFile string `json:"-"`
}

// Sink is the sink that sends the notifications.
func (n *Notify) Sink() HTTPSink {
	s := HTTPSink{URL: n.URL, SigningSecretFile: n.SigningSecretFile, Access: Access{Auth: n.Auth, TLS: n.TLS}}
	s.ApplyDefaults()
	return s
}
