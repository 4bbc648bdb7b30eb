package spec

import "time"

// HTTPSink posts CloudEvents 1.0 to a URL. A response of 2xx means delivered.
type HTTPSink struct {
	// url is the http or https URL that events are posted to, without user or
	// password.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="isURL(self) && self.matches('^https?://[^/?#:@][^/?#@]*([/?#].*)?$')",message="url must be an http:// or https:// URL with a host, such as https://orders.example.com/events, and hold no user or password, because everybody may read it; put credentials into a Secret and name it in auth"
	URL string `json:"url,omitempty"`

	// batchSize is the maximum number of events in a request of contentMode Batch.
	// From 1 to 1000. When not set: 100.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	BatchSize int32 `json:"batchSize,omitempty"`

	// headers are added to every request. They are not secret: for credentials see
	// sink.auth.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:XValidation:rule="self.all(a, self.exists_one(b, a.name.lowerAscii() == b.name.lowerAscii()))",message="headers must not name a header twice, in whatever case; remove one of the two"
	Headers []HTTPHeader `json:"headers,omitempty"`

	// signingSecretRef is the Secret that every request is signed with, as the
	// Standard Webhooks specification says: one secret per line, whsec_ and 24 to 64
	// random bytes in base64. Each makes a signature, so that consumers can change
	// from one to the next. Its key, when not set: secret. When not set: requests are
	// not signed.
	// +optional
	SigningSecretRef *SecretRef `json:"signingSecretRef,omitempty"`

	// maxConnections is the maximum number of connections of each pod, and so of
	// concurrent requests. From 1 to 1000. When not set: as many as concurrency
	// allows.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	MaxConnections int32 `json:"maxConnections,omitempty"`

	// captureResponse is None, or Body: that keeps the first KiB of the body of the
	// response that made an event dead, in its dead letter in the database and nowhere
	// else. The response may repeat parts of the event. Defaults to None.
	// +optional
	// +kubebuilder:default=None
	CaptureResponse ResponseCapture `json:"captureResponse,omitempty"`

	// SigningSecretFile has what signingSecretRef names, where a process reads it.
	SigningSecretFile string `json:"-"`

	// Access is what the object has next to the kind: auth, tls, content mode and timeout of the sink.
	Access `json:"-"`
}

// ResponseCapture is what is kept of a response.
// +kubebuilder:validation:Enum=None;Body
type ResponseCapture string

const (
	// CaptureNone keeps nothing.
	CaptureNone ResponseCapture = "None"
	// CaptureBody keeps the beginning of its body.
	CaptureBody ResponseCapture = "Body"
)

// ApplyDefaults sets the fields that are not set to the defaults in their comments.
func (h *HTTPSink) ApplyDefaults() {
	setDefault(&h.ContentMode, Binary)
	setDefault(&h.CaptureResponse, CaptureNone)
	setDefault(&h.Timeout, Duration(10*time.Second))
	if h.ContentMode == Batch {
		setDefault(&h.BatchSize, 100)
	}
}

// HTTPHeader is one header of a request.
type HTTPHeader struct {
	// name is the header's name: alphanumeric characters and dashes. The dispatcher
	// itself sets those that start with ce-, and a few more.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9-]+$') && !self.lowerAscii().startsWith('ce-') && !(self.lowerAscii() in ['authorization', 'connection', 'content-length', 'content-type', 'host', 'transfer-encoding', 'webhook-id', 'webhook-signature', 'webhook-timestamp'])",message="name must be a header of alphanumeric characters and dashes and none that the dispatcher sets itself (ce-*, authorization, connection, content-length, content-type, host, transfer-encoding, webhook-id, webhook-signature, webhook-timestamp); choose another, or auth for credentials"
	Name string `json:"name,omitempty"`

	// value is the header's value.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:XValidation:rule="self.matches('^[[:print:]]+$')",message="value must be printable ASCII characters on one line; remove or encode the others"
	Value string `json:"value,omitempty"`
}

// ReservedHeaders are the names, in lower case, that [HTTPSink.Headers] cannot have, in addition to those that begin
// with ce-: the sink or its library sets them.
var ReservedHeaders = []string{
	"authorization", "connection", "content-length", "content-type", "host", "transfer-encoding",
	"webhook-id", "webhook-signature", "webhook-timestamp",
}

// PostgresSink inserts events into a table of another database, effectively once: the event's id is the primary key of
// the table, and an existing one counts as delivered.
type PostgresSink struct {
	// secretRef is the Secret with a connection string, as a URL or as key=value
	// words. With several hosts the one that accepts writes is used, also after a
	// failover. Its login needs only the rights to insert into the table, and to
	// select its id. With an authority in sink.tls the server is verified as with
	// sslmode=verify-full, unless the string has sslmode=verify-ca. Its key, when not
	// set: dsn.
	// +required
	SecretRef SecretRef `json:"secretRef,omitzero"`

	// iam makes the password of each connection from the pod's identity in a cloud:
	// see spec.pods.serviceAccount. Host, database and user are those of the connection
	// string. When not set: the password is the one in the connection string.
	// +optional
	IAM *IAM `json:"iam,omitempty"`

	// table is the table's name, with its schema. It is never created: the
	// documentation has the statement. Defaults to public.inbox_events.
	// +optional
	// +kubebuilder:default="public.inbox_events"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=127
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z_][a-z0-9_]{0,62}[.][a-z_][a-z0-9_]{0,62}$')",message="table must be schema.table of lower-case alphanumeric characters and underscores, such as public.inbox_events"
	Table string `json:"table,omitempty"`

	// DSNFile has what secretRef names, where a process reads it. DSN is a connection string in its place.
	DSNFile string `json:"-"`
	DSN     string `json:"-"`

	// Access is what the object has next to the kind: auth, tls, content mode and timeout of the sink.
	Access `json:"-"`
}

// Database returns how to connect to the table's database, for package database. Its Schema has no meaning.
func (s *PostgresSink) Database() Database {
	d := Database{DSN: s.DSN, DSNFile: s.DSNFile, Schema: "outbox", IAM: s.IAM}
	if t := s.TLS; t != nil {
		d.CAFile, d.ClientCertFile, d.ClientKeyFile = t.CAFile, t.ClientCertFile, t.ClientKeyFile
	}
	return d
}

// ApplyDefaults sets the fields that are not set to the defaults in their comments.
func (s *PostgresSink) ApplyDefaults() {
	setDefault(&s.Table, "public.inbox_events")
	setDefault(&s.Timeout, Duration(30*time.Second))
}
