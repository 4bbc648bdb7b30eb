package v1alpha1

// DeadLetters says what is done about events that become dead, beside the record
// of each.
type DeadLetters struct {
	// notify is an address that is told of each death, by a CloudEvent over HTTP.
	// When not set: none.
	// +optional
	Notify *Notify `json:"notify,omitempty"`
}

// Notify is an address that is told of each death. An answer of 2xx means that it
// has taken the notification; another is tried again until a day after the death.
//
// +kubebuilder:validation:XValidation:rule="!has(self.tls) || self.url.startsWith('https://')",fieldPath=".tls",message="tls needs an https:// url; change url, or remove tls"
// +kubebuilder:validation:XValidation:rule="!has(self.tls) || has(self.tls.ca) || has(self.tls.clientCertificate) || has(self.tls.serverName)",fieldPath=".tls",message="tls must have ca, clientCertificate or serverName; add what the server needs, or remove tls"
type Notify struct {
	// url is where notifications are posted: http or https, without user or password.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="isURL(self) && self.matches('^https?://[^/?#:]')",message="url must be an http:// or https:// URL with a host, such as https://oncall.example.com/deaths"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^[^/]*//[^/?#]*@')",message="url must not hold a user or a password, because everybody may read it; put credentials into a Secret and name it in auth"
	URL string `json:"url,omitempty"`

	// auth are the credentials that every request carries.
	// +optional
	Auth *HTTPAuth `json:"auth,omitempty"`

	// signing signs every request, as the Standard Webhooks specification says. When
	// not set: not at all.
	// +optional
	Signing *HTTPSigning `json:"signing,omitempty"`

	// tls says whom to trust, and how to identify oneself, at an https url.
	// +optional
	TLS *TLS `json:"tls,omitempty"`
}
