package spec

import "time"

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

	// SigningSecretFile has what signingSecretRef names, where a process reads it.
	SigningSecretFile string `json:"-"`
}

// Sink is the sink that sends the notifications.
func (n *Notify) Sink() HTTPSink {
	s := HTTPSink{URL: n.URL, SigningSecretFile: n.SigningSecretFile, Access: Access{Auth: n.Auth, TLS: n.TLS}}
	s.ApplyDefaults()
	return s
}

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

	// refresh is how long the latest version of a subject is cached. It is read again at once for an
	// event that does not fit. While the registry is unreachable the last known version is used. From
	// 1s to 24h. Defaults to 5m.
	// +optional
	// +kubebuilder:default="5m"
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1s') && duration(self) <= duration('24h')",message="refresh must be a duration from 1s to 24h, such as 5m"
	Refresh Duration `json:"refresh,omitzero"`
}

// ApplyDefaults sets the fields that are not set to the defaults in their comments.
func (r *SchemaRegistry) ApplyDefaults() {
	setDefault(&r.Refresh, Duration(5*time.Minute))
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
