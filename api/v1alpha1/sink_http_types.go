package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// HTTPSink posts CloudEvents 1.0 to a URL. A response of 2xx means delivered.
//
// +kubebuilder:validation:XValidation:rule="!has(self.batchSize) || self.contentMode == 'Batch'",fieldPath=".batchSize",message="batchSize belongs to contentMode Batch; set contentMode to Batch, or remove batchSize"
// +kubebuilder:validation:XValidation:rule="!has(self.tls) || self.url.startsWith('https://')",fieldPath=".tls",message="tls needs an https:// url; change url, or remove tls"
// +kubebuilder:validation:XValidation:rule="!has(self.tls) || has(self.tls.ca) || has(self.tls.clientCertificate) || has(self.tls.serverName)",fieldPath=".tls",message="tls must have ca, clientCertificate or serverName; add what the server needs, or remove tls"
type HTTPSink struct {
	// url is the http or https URL that events are posted to, without user or
	// password.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="isURL(self) && self.matches('^https?://[^/?#:]')",message="url must be an http:// or https:// URL with a host, such as https://orders.example.com/events"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^[^/]*//[^/?#]*@')",message="url must not hold a user or a password, because everybody may read it; put credentials into a Secret and name it in auth"
	URL string `json:"url,omitempty"`

	// contentMode is how events are put into a request, as the CloudEvents HTTP binding
	// names it: Binary (attributes as headers, payload as body), Structured (one
	// JSON object) or Batch (a JSON array of up to batchSize events). Defaults to
	// Binary.
	// +optional
	// +kubebuilder:default=Binary
	// +kubebuilder:validation:Enum=Binary;Structured;Batch
	ContentMode ContentMode `json:"contentMode,omitempty"`

	// batchSize is the maximum number of events in a request of contentMode Batch.
	// From 1 to 1000. When not set: 100.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	BatchSize *int32 `json:"batchSize,omitempty"`

	// timeout bounds one request. From 10ms to 10m. Defaults to 10s.
	// +optional
	// +kubebuilder:default="10s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('10ms') && duration(self) <= duration('10m')",message="timeout must be a duration from 10ms to 10m, such as 10s"
	Timeout metav1.Duration `json:"timeout,omitzero"`

	// headers are added to every request. They are not secret: for credentials see
	// auth.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:XValidation:rule="self.all(a, self.exists_one(b, a.name.lowerAscii() == b.name.lowerAscii()))",message="headers must not name a header twice, in whatever case; remove one of the two"
	Headers []HTTPHeader `json:"headers,omitempty"`

	// auth holds the credentials of every request.
	// +optional
	Auth *HTTPAuth `json:"auth,omitempty"`

	// signing signs every request, as the Standard Webhooks specification says. When
	// not set: requests are not signed.
	// +optional
	Signing *HTTPSigning `json:"signing,omitempty"`

	// maxConnections is the maximum number of connections of each pod, and so of
	// concurrent requests. From 1 to 1000. When not set: as many as concurrency
	// allows.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	MaxConnections *int32 `json:"maxConnections,omitempty"`

	// captureResponse keeps the first KiB of the response that made an event dead, in
	// its dead letter in the database and nowhere else. The response may repeat parts
	// of the event. When not set: it is not kept.
	// +optional
	CaptureResponse bool `json:"captureResponse,omitempty"`

	// tls configures the certificates of an https url.
	// +optional
	TLS *TLS `json:"tls,omitempty"`
}

// HTTPSigning configures the signatures of requests.
type HTTPSigning struct {
	// secret is the key of a Secret that holds one or more secrets of Standard
	// Webhooks, one per line: whsec_ and 24 to 64 random bytes in base64. Each makes a
	// signature, so that consumers can change from one to the next.
	// +required
	Secret SecretKey `json:"secret,omitzero"`
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
