package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// DeadGroup counts unresolved dead rows that have the same topic, reason and cause.
type DeadGroup struct {
	// group identifies the group, by 8 hex digits. Commands that read, replay or
	// discard dead letters accept it.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=40
	Group string `json:"group"`

	// topic is the events' topic.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Topic string `json:"topic,omitempty"`

	// reason is why the events are dead: MaxRetriesExceeded, PoisonMessage,
	// SchemaValidationFailed, ProcessingTimeout or PermanentFailure.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason,omitempty"`

	// class is what failed, in one word: the kind of the sink, schema, rule, route,
	// mask, message, decode, handler or lease.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Class string `json:"class,omitempty"`

	// code is the destination's own code, or the name of the rule, such as 422.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	Code string `json:"code,omitempty"`

	// place is the place in the event, such as /items/*/price.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Place string `json:"place,omitempty"`

	// count is the number of events.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Count int64 `json:"count"`

	// estimated is true when count is an estimate.
	// +optional
	Estimated bool `json:"estimated,omitempty"`

	// since is when the first of them became dead.
	// +optional
	Since *metav1.Time `json:"since,omitempty"`

	// last is when the last of them became dead.
	// +optional
	Last *metav1.Time `json:"last,omitempty"`
}

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
}
