package v1alpha1

// SecretRef names a Secret in the same namespace, and a key in it.
//
// +kubebuilder:validation:XValidation:rule="!format.dns1123Subdomain().validate(self.name).hasValue() && (!has(self.key) || self.key.matches('^[A-Za-z0-9._-]+$'))",message="name must be the name of a Secret, such as orders-db, and key a key in it, such as password; correct them"
type SecretRef struct {
	// name is the name of the Secret.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`

	// key is the key in it. When not set: the one that the field with the reference
	// names.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Key string `json:"key,omitempty"`
}

// ConfigMapRef names a ConfigMap in the same namespace, and a key in it.
//
// +kubebuilder:validation:XValidation:rule="!format.dns1123Subdomain().validate(self.name).hasValue() && (!has(self.key) || self.key.matches('^[A-Za-z0-9._-]+$'))",message="name must be the name of a ConfigMap, such as kafka-ca, and key a key in it, such as ca.crt; correct them"
type ConfigMapRef struct {
	// name is the name of the ConfigMap.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`

	// key is the key in it. When not set: the one that the field with the reference
	// names.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Key string `json:"key,omitempty"`
}
