package spec

// What several sinks have.

// ContentMode is how a message holds an event, as the bindings of CloudEvents name it.
// +kubebuilder:validation:Enum=Binary;Structured;Batch
type ContentMode string

const (
	// Binary puts the attributes into headers, properties or fields, and the payload into the body.
	Binary ContentMode = "Binary"
	// Structured puts an event into one JSON object.
	Structured ContentMode = "Structured"
	// Batch puts several events into a JSON array.
	Batch ContentMode = "Batch"
)

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
	Type AuthType `json:"type,omitempty"`

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
	SecretRef *SecretRef `json:"secretRef,omitempty"`

	// UsernameFile and SecretFile have what the Secret has, where a process reads it.
	UsernameFile string `json:"-"`
	SecretFile   string `json:"-"`
}

// AuthType is how to log in. Each destination lists the types that it supports.
// +kubebuilder:validation:Enum=Basic;Token;Plain;ScramSHA256;ScramSHA512;OAuthBearer;AWSMSKIAM;External;NKey;Credentials;Password
type AuthType string

const (
	// AuthBasic is a user and a password.
	AuthBasic AuthType = "Basic"
	// AuthToken is a token.
	AuthToken AuthType = "Token"
	// AuthPlain is a user and a password, by SASL's mechanism PLAIN.
	AuthPlain AuthType = "Plain"
	// AuthScramSHA256 is a user and a password, by SASL's mechanism SCRAM-SHA-256.
	AuthScramSHA256 AuthType = "ScramSHA256"
	// AuthScramSHA512 is a user and a password, by SASL's mechanism SCRAM-SHA-512.
	AuthScramSHA512 AuthType = "ScramSHA512"
	// AuthOAuthBearer is a token, by SASL's mechanism OAUTHBEARER. The dispatcher does not renew it.
	AuthOAuthBearer AuthType = "OAuthBearer"
	// AuthAWSMSKIAM is the pod's identity in AWS (IAM Roles for Service Accounts, EKS Pod Identity, or AWS_ACCESS_KEY_ID
	// and AWS_SECRET_ACCESS_KEY of its environment: see spec.pods.template).
	AuthAWSMSKIAM AuthType = "AWSMSKIAM"
	// AuthExternal is the client certificate of tls, whose name is the user's.
	AuthExternal AuthType = "External"
	// AuthNKey is the seed of a user's NKey.
	AuthNKey AuthType = "NKey"
	// AuthCredentials is a user's JWT and the seed of its NKey, as nsc writes them into a .creds file.
	AuthCredentials AuthType = "Credentials"
	// AuthPassword is the password of Redis's user default (requirepass).
	AuthPassword AuthType = "Password"
)

// TLS configures the certificates of connections. When empty, the system roots are trusted.
//
// +kubebuilder:validation:XValidation:rule="!has(self.caSecretRef) || !has(self.caConfigMapRef)",fieldPath=".caConfigMapRef",message="caSecretRef and caConfigMapRef exclude each other; remove one of them"
// +kubebuilder:validation:XValidation:rule="!has(self.clientKeySecretRef) || has(self.clientCertSecretRef)",fieldPath=".clientKeySecretRef",message="clientKeySecretRef is the key of the certificate of clientCertSecretRef; add that, or remove clientKeySecretRef"
type TLS struct {
	// caSecretRef is the Secret with PEM certificates that replace the system roots.
	// Its key, when not set: ca.crt.
	// +optional
	CASecretRef *SecretRef `json:"caSecretRef,omitempty"`

	// caConfigMapRef is the ConfigMap with PEM certificates that replace the system
	// roots. Its key, when not set: ca.crt. Not together with caSecretRef.
	// +optional
	CAConfigMapRef *ConfigMapRef `json:"caConfigMapRef,omitempty"`

	// clientCertSecretRef is the Secret with the certificate of the dispatcher, in
	// PEM. Its key, when not set: tls.crt, so that it fits Secrets of type
	// kubernetes.io/tls. When not set: there is none.
	// +optional
	ClientCertSecretRef *SecretRef `json:"clientCertSecretRef,omitempty"`

	// clientKeySecretRef is the Secret with the private key of that certificate, in
	// PEM. Its key, when not set: tls.key. When not set: the key tls.key of
	// clientCertSecretRef's Secret.
	// +optional
	ClientKeySecretRef *SecretRef `json:"clientKeySecretRef,omitempty"`

	// serverName is the name that the server's certificate must have, instead of the
	// host of the connection.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	ServerName string `json:"serverName,omitempty"`

	// CAFile, ClientCertFile and ClientKeyFile have what the references name, where a process reads it.
	CAFile         string `json:"-"`
	ClientCertFile string `json:"-"`
	ClientKeyFile  string `json:"-"`
}

// SecretName names a Secret in the same namespace.
type SecretName struct {
	// name is the Secret's name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Subdomain().validate(self).hasValue()",message="name must be the name of a Secret: lower-case alphanumeric characters, dashes and dots, such as orders-db"
	Name string `json:"name,omitempty"`
}

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
