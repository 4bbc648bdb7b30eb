package v1alpha1

import "github.com/outbox-operator/outbox-operator/api/spec"

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
	SigningSecretRef *spec.SecretRef `json:"signingSecretRef,omitempty"`

	// tls configures the certificates of an https url.
	// +optional
	TLS *TLS `json:"tls,omitempty"`
}
