package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// SchemaRegistry is where schemas are read from: Confluent's Schema Registry, or what speaks its API.
// Nothing is ever registered there.
//
// +kubebuilder:validation:XValidation:rule="!has(self.tls) || self.url.startsWith('https://')",fieldPath=".tls",message="tls needs an https:// url; change url, or remove tls"
// +kubebuilder:validation:XValidation:rule="!has(self.tls) || has(self.tls.ca) || has(self.tls.clientCertificate) || has(self.tls.serverName)",fieldPath=".tls",message="tls must have ca, clientCertificate or serverName; add what the registry needs, or remove tls"
type SchemaRegistry struct {
	// url is http or https, without user and password.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="isURL(self) && self.matches('^https?://[^/?#:][^?#]*$')",message="url must be an http:// or https:// URL with a host and without a query, such as https://registry.example.com"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^[^/]*//[^/?#]*@')",message="url must not hold a user or a password, because everybody may read it; put credentials into a Secret and name it in auth"
	URL string `json:"url,omitempty"`

	// auth are the credentials that the registry asks for. When not set: none.
	// +optional
	Auth *HTTPAuth `json:"auth,omitempty"`

	// tls says whom to trust, and how to identify oneself, at an https url.
	// +optional
	TLS *TLS `json:"tls,omitempty"`

	// refresh is how long the latest version of a subject holds until it is asked
	// for again. While the registry is away the last known version holds. From 1s
	// to 24h. Defaults to 5m.
	// +optional
	// +kubebuilder:default="5m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1s') && duration(self) <= duration('24h')",message="refresh must be a duration from 1s to 24h, such as 5m"
	Refresh metav1.Duration `json:"refresh,omitzero"`
}
