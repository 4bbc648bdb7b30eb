package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// SchemaRegistry is a schema registry: Confluent's Schema Registry, or one with the same API. Dispatchers register
// nothing in it.
//
// +kubebuilder:validation:XValidation:rule="!has(self.tls) || self.url.startsWith('https://') && [has(self.tls.caSecretRef), has(self.tls.caConfigMapRef), has(self.tls.clientCertSecretRef), has(self.tls.serverName)].exists(set, set)",fieldPath=".tls",message="tls is for an https:// url, and must have caSecretRef, caConfigMapRef, clientCertSecretRef or serverName; change url, add what the server needs, or remove tls"
// +kubebuilder:validation:XValidation:rule="!has(self.auth) || self.auth.type in ['Basic', 'Token']",fieldPath=".auth.type",message="type must be Basic or Token, as HTTP has them; choose one of these"
type SchemaRegistry struct {
	// url is an http or https URL, without user and password.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="isURL(self) && self.matches('^https?://[^/?#:@][^?#@]*$')",message="url must be an http:// or https:// URL with a host and without a query, such as https://registry.example.com, and hold no user or password, because everybody may read it; put credentials into a Secret and name it in auth"
	URL string `json:"url,omitempty"`

	// auth is the login of every request, of type Basic or Token. When not set: none.
	// +optional
	Auth *Auth `json:"auth,omitempty"`

	// tls configures the certificates of an https url.
	// +optional
	TLS *TLS `json:"tls,omitempty"`

	// refresh is how long the latest version of a subject is cached. While the
	// registry is unreachable the last known version is used. From 1s to 24h. Defaults
	// to 5m.
	// +optional
	// +kubebuilder:default="5m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1s') && duration(self) <= duration('24h')",message="refresh must be a duration from 1s to 24h, such as 5m"
	Refresh metav1.Duration `json:"refresh,omitzero"`
}
