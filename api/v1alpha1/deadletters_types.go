package v1alpha1

// DeadLetters says what happens when events become dead, in addition to their dead letters.
type DeadLetters struct {
	// notify is an address that is notified of each dead letter, by a CloudEvent over
	// HTTP. When not set: none.
	// +optional
	Notify *Notify `json:"notify,omitempty"`
}

// Notify is an address that is notified of each dead letter. A response of 2xx accepts the notification; after any
// other it is retried for a day.
//
// +kubebuilder:validation:XValidation:rule="!has(self.tls) || self.url.startsWith('https://')",fieldPath=".tls",message="tls needs an https:// url; change url, or remove tls"
// +kubebuilder:validation:XValidation:rule="!has(self.tls) || has(self.tls.ca) || has(self.tls.clientCertificate) || has(self.tls.serverName)",fieldPath=".tls",message="tls must have ca, clientCertificate or serverName; add what the server needs, or remove tls"
type Notify struct {
	// url is the http or https URL that notifications are posted to, without user or
	// password.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="isURL(self) && self.matches('^https?://[^/?#:]')",message="url must be an http:// or https:// URL with a host, such as https://oncall.example.com/dead-letters"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^[^/]*//[^/?#]*@')",message="url must not hold a user or a password, because everybody may read it; put credentials into a Secret and name it in auth"
	URL string `json:"url,omitempty"`

	// auth holds the credentials of every request.
	// +optional
	Auth *HTTPAuth `json:"auth,omitempty"`

	// signing signs every request, as the Standard Webhooks specification says. When
	// not set: requests are not signed.
	// +optional
	Signing *HTTPSigning `json:"signing,omitempty"`

	// tls configures the certificates of an https url.
	// +optional
	TLS *TLS `json:"tls,omitempty"`
}
