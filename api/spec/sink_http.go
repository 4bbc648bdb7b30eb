package spec

import "time"

// HTTPSink posts CloudEvents 1.0 to a URL.
//
// +kubebuilder:object:generate=false
type HTTPSink struct {
	// URL is http or https, without user and password. Required.
	URL string `json:"url"`
	// BatchSize is the most events in a request, 1 to 1000, in contentMode Batch. Defaults to 100.
	BatchSize int `json:"batchSize,omitempty"`
	// Headers are added to every request, at most 32. Not for secrets: see auth.
	Headers map[string]string `json:"headers,omitempty"`
	// SigningSecretFile holds what every request is signed with, as the Standard Webhooks specification says: one
	// secret on each line, whsec_ and 24 to 64 bytes in base64. Each makes a signature. It is read again when it
	// changes. Defaults to none: requests are not signed.
	SigningSecretFile string `json:"signingSecretFile,omitempty"`
	// MaxConnections is the most requests at a time, and so the most connections, up to 1000.
	// Defaults to 0: no bound but the engine's concurrency.
	MaxConnections int `json:"maxConnections,omitempty"`
	// CaptureResponse is None, or Body: that keeps the first KiB of the body of the response, when it makes an event
	// dead, in its dead letter and nowhere else. The response may repeat the event. Defaults to None.
	CaptureResponse ResponseCapture `json:"captureResponse,omitempty"`
	// Access is what the file has next to the kind: auth, tls and timeout of the sink.
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
