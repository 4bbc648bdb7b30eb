package v1alpha1

import "github.com/outbox-operator/outbox-operator/api/spec"

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
	BatchSize *int32 `json:"batchSize,omitempty"`

	// headers are added to every request. They are not secret: for credentials see
	// sink.auth.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:XValidation:rule="self.all(a, self.exists_one(b, a.name.lowerAscii() == b.name.lowerAscii()))",message="headers must not name a header twice, in whatever case; remove one of the two"
	Headers []spec.HTTPHeader `json:"headers,omitempty"`

	// signingSecretRef is the Secret that every request is signed with, as the
	// Standard Webhooks specification says: one secret per line, whsec_ and 24 to 64
	// random bytes in base64. Each makes a signature, so that consumers can change
	// from one to the next. Its key, when not set: secret. When not set: requests are
	// not signed.
	// +optional
	SigningSecretRef *spec.SecretRef `json:"signingSecretRef,omitempty"`

	// maxConnections is the maximum number of connections of each pod, and so of
	// concurrent requests. From 1 to 1000. When not set: as many as concurrency
	// allows.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	MaxConnections *int32 `json:"maxConnections,omitempty"`

	// captureResponse is None, or Body: that keeps the first KiB of the body of the
	// response that made an event dead, in its dead letter in the database and nowhere
	// else. The response may repeat parts of the event. Defaults to None.
	// +optional
	// +kubebuilder:default=None
	CaptureResponse spec.ResponseCapture `json:"captureResponse,omitempty"`
}
