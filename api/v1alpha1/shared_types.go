package v1alpha1

// Types that several sinks share.

// SecretKey names one key of a Secret in the same namespace.
type SecretKey struct {
	// name is the Secret's name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Subdomain().validate(self).hasValue()",message="name must be the name of a Secret: lower-case alphanumeric characters, dashes and dots, such as orders-db"
	Name string `json:"name,omitempty"`

	// key is the key in it.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9._-]+$')",message="key must be a key of a Secret: alphanumeric characters, dashes, dots and underscores"
	Key string `json:"key,omitempty"`
}

// BasicAuth is a user and a password. By default it fits Secrets of type kubernetes.io/basic-auth.
//
// +kubebuilder:validation:XValidation:rule="!has(self.username) || !has(self.usernameKey)",fieldPath=".usernameKey",message="usernameKey must not be set together with username, which is the name itself; remove one of them"
type BasicAuth struct {
	// name is the name of the Secret that holds the password.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Subdomain().validate(self).hasValue()",message="name must be the name of a Secret: lower-case alphanumeric characters, dashes and dots, such as orders-db"
	Name string `json:"name,omitempty"`

	// username is the user's name, for a Secret that holds only the password. When not
	// set: the one in the Secret.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	Username string `json:"username,omitempty"`

	// usernameKey is the Secret's key that holds the user's name. When neither it
	// nor username is set: username.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9._-]+$')",message="usernameKey must be a key of a Secret: alphanumeric characters, dashes, dots and underscores"
	UsernameKey string `json:"usernameKey,omitempty"`

	// passwordKey is the Secret's key that holds the password. Defaults to password.
	// +optional
	// +kubebuilder:default=password
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9._-]+$')",message="passwordKey must be a key of a Secret: alphanumeric characters, dashes, dots and underscores"
	PasswordKey string `json:"passwordKey,omitempty"`
}

// TLS configures the certificates of connections. When empty, the system roots are trusted.
type TLS struct {
	// ca holds PEM certificates that replace the system roots.
	// +optional
	CA *CA `json:"ca,omitempty"`

	// clientCertificate is the certificate of the dispatcher. When not set: none.
	// +optional
	ClientCertificate *ClientCertificate `json:"clientCertificate,omitempty"`

	// serverName is the name that the server's certificate must have, instead of the
	// host of the connection.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	ServerName string `json:"serverName,omitempty"`
}

// CA names the certificates of authorities: exactly one of its members.
//
// +kubebuilder:validation:XValidation:rule="has(self.secret) != has(self.configMap)",message="ca must have exactly one of secret and configMap; add the one that holds the certificates, or remove the other"
type CA struct {
	// secret is the key of a Secret in the same namespace.
	// +optional
	Secret *CAKey `json:"secret,omitempty"`

	// configMap is the key of a ConfigMap in the same namespace.
	// +optional
	ConfigMap *CAKey `json:"configMap,omitempty"`
}

// CAKey names the key of a Secret or ConfigMap that holds certificates.
type CAKey struct {
	// name is the name of the Secret or ConfigMap.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Subdomain().validate(self).hasValue()",message="name must be the name of a Secret or ConfigMap: lower-case alphanumeric characters, dashes and dots, such as kafka-cluster-ca-cert"
	Name string `json:"name,omitempty"`

	// key is the key in it. Defaults to ca.crt.
	// +optional
	// +kubebuilder:default=ca.crt
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9._-]+$')",message="key must be a key of a Secret or ConfigMap: alphanumeric characters, dashes, dots and underscores"
	Key string `json:"key,omitempty"`
}

// ClientCertificate is a certificate and its key in a Secret. By default it fits Secrets of type
// kubernetes.io/tls.
type ClientCertificate struct {
	// name is the Secret's name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Subdomain().validate(self).hasValue()",message="name must be the name of a Secret: lower-case alphanumeric characters, dashes and dots, such as orders-db"
	Name string `json:"name,omitempty"`

	// certKey is the Secret's key that holds the certificate, in PEM. Defaults to
	// tls.crt.
	// +optional
	// +kubebuilder:default=tls.crt
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9._-]+$')",message="certKey must be a key of a Secret: alphanumeric characters, dashes, dots and underscores"
	CertKey string `json:"certKey,omitempty"`

	// keyKey is the Secret's key that holds the private key, in PEM. Defaults to
	// tls.key.
	// +optional
	// +kubebuilder:default=tls.key
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9._-]+$')",message="keyKey must be a key of a Secret: alphanumeric characters, dashes, dots and underscores"
	KeyKey string `json:"keyKey,omitempty"`
}

// HTTPAuth are the credentials of HTTP requests: exactly one of its members.
//
// +kubebuilder:validation:XValidation:rule="has(self.basic) != has(self.token)",message="auth must have exactly one of basic and token; add the one that the server requires, or remove the other"
type HTTPAuth struct {
	// basic is a user and a password.
	// +optional
	Basic *BasicAuth `json:"basic,omitempty"`

	// token is the key of a Secret that holds a token, sent as Bearer.
	// +optional
	Token *SecretKey `json:"token,omitempty"`
}

// ContentMode is how an event is put into a message, as the bindings of CloudEvents name it. Each sink lists the modes
// that it supports.
type ContentMode string

const (
	// ContentBinary puts the attributes into headers, properties or fields, and the
	// payload into the body.
	ContentBinary ContentMode = "Binary"
	// ContentStructured puts an event into one JSON object.
	ContentStructured ContentMode = "Structured"
	// ContentBatch puts several events into a JSON array.
	ContentBatch ContentMode = "Batch"
)

// SecretName names a Secret in the same namespace.
type SecretName struct {
	// name is the Secret's name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Subdomain().validate(self).hasValue()",message="name must be the name of a Secret: lower-case alphanumeric characters, dashes and dots, such as orders-db"
	Name string `json:"name,omitempty"`
}
