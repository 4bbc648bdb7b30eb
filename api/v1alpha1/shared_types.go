package v1alpha1

import "github.com/outbox-operator/outbox-operator/api/spec"

// Types that several sections share.

// Auth is a login.
//
// +kubebuilder:validation:XValidation:rule="has(self.secretRef) != (self.type in ['AWSMSKIAM', 'External'])",fieldPath=".secretRef",message="secretRef belongs to all types but AWSMSKIAM and External, and these need it; name the Secret with the password, token, seed or credentials, or remove it"
// +kubebuilder:validation:XValidation:rule="[has(self.username), has(self.usernameKey)].filter(set, set).size() <= (self.type in ['Basic', 'Plain', 'ScramSHA256', 'ScramSHA512'] ? 1 : 0)",fieldPath=".username",message="username, the name itself, and usernameKey, its key in the Secret, exclude each other, and belong to the types Basic, Plain, ScramSHA256 and ScramSHA512; remove what is too much"
type Auth struct {
	// type is how to log in: Basic or Token (sent as Bearer) over HTTP; Plain,
	// ScramSHA256, ScramSHA512, OAuthBearer or AWSMSKIAM for kafka; Basic, Token, NKey
	// or Credentials for nats; Plain or External for rabbitmq; Basic or Password for
	// redis.
	// +required
	Type spec.AuthType `json:"type,omitempty"`

	// username is the user's name, for a Secret that holds only the password. When not
	// set: the one in the Secret. For the types Basic, Plain, ScramSHA256 and
	// ScramSHA512.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	Username string `json:"username,omitempty"`

	// usernameKey is the key of secretRef's Secret that holds the user's name. When
	// neither it nor username is set: username.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9._-]+$')",message="usernameKey must be a key of a Secret: alphanumeric characters, dashes, dots and underscores"
	UsernameKey string `json:"usernameKey,omitempty"`

	// secretRef is the Secret with the password, the token, the seed or the
	// credentials. Its key, when not set: token for Token and OAuthBearer, nkey for
	// NKey, credentials for Credentials, else password. So it fits Secrets of type
	// kubernetes.io/basic-auth. Not for AWSMSKIAM and External.
	// +optional
	SecretRef *spec.SecretRef `json:"secretRef,omitempty"`
}

// TLS configures the certificates of connections. When empty, the system roots are trusted.
//
// +kubebuilder:validation:XValidation:rule="!has(self.caSecretRef) || !has(self.caConfigMapRef)",fieldPath=".caConfigMapRef",message="caSecretRef and caConfigMapRef exclude each other; remove one of them"
// +kubebuilder:validation:XValidation:rule="!has(self.clientKeySecretRef) || has(self.clientCertSecretRef)",fieldPath=".clientKeySecretRef",message="clientKeySecretRef is the key of the certificate of clientCertSecretRef; add that, or remove clientKeySecretRef"
type TLS struct {
	// caSecretRef is the Secret with PEM certificates that replace the system roots.
	// Its key, when not set: ca.crt.
	// +optional
	CASecretRef *spec.SecretRef `json:"caSecretRef,omitempty"`

	// caConfigMapRef is the ConfigMap with PEM certificates that replace the system
	// roots. Its key, when not set: ca.crt. Not together with caSecretRef.
	// +optional
	CAConfigMapRef *spec.ConfigMapRef `json:"caConfigMapRef,omitempty"`

	// clientCertSecretRef is the Secret with the certificate of the dispatcher, in
	// PEM. Its key, when not set: tls.crt, so that it fits Secrets of type
	// kubernetes.io/tls. When not set: there is none.
	// +optional
	ClientCertSecretRef *spec.SecretRef `json:"clientCertSecretRef,omitempty"`

	// clientKeySecretRef is the Secret with the private key of that certificate, in
	// PEM. Its key, when not set: tls.key. When not set: the key tls.key of
	// clientCertSecretRef's Secret.
	// +optional
	ClientKeySecretRef *spec.SecretRef `json:"clientKeySecretRef,omitempty"`

	// serverName is the name that the server's certificate must have, instead of the
	// host of the connection.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	ServerName string `json:"serverName,omitempty"`
}
