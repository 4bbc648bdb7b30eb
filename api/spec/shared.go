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

// Auth is a login. Its files are read at each login.
type Auth struct {
	// Type is how to log in; each destination has its own types. Required.
	Type AuthType `json:"type"`
	// Username or UsernameFile, which holds it, is the name of the user, for the types Basic, Plain and Scram; one of
	// them is required by these.
	Username     string `json:"username,omitempty"`
	UsernameFile string `json:"usernameFile,omitempty"`
	// SecretFile holds the password, the token, the seed of the NKey or the credentials. Required by all types but
	// AWSMSKIAM and External.
	SecretFile string `json:"secretFile,omitempty"`
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

// TLS says whom to trust and how to identify oneself.
type TLS struct {
	// CAFile holds PEM certificates that replace the system's roots.
	CAFile string `json:"caFile,omitempty"`
	// ClientCertFile and ClientKeyFile are the client's certificate and key, both or neither.
	ClientCertFile string `json:"clientCertFile,omitempty"`
	ClientKeyFile  string `json:"clientKeyFile,omitempty"`
	// ServerName is checked against the server's certificate instead of the URL's host.
	ServerName string `json:"serverName,omitempty"`
}

// Notify is an address that is notified of each dead letter, by a CloudEvent over HTTP. Its members are those of
// [HTTPSink].
//
// +kubebuilder:object:generate=false
type Notify struct {
	// URL is http or https, without user and password. Required.
	URL string `json:"url"`
	// Auth are the credentials of every request. Defaults to none.
	Auth *Auth `json:"auth,omitempty"`
	// SigningSecretFile holds what every request is signed with. Defaults to none: requests are not signed.
	SigningSecretFile string `json:"signingSecretFile,omitempty"`
	// TLS is for https URLs; at least one member must be set.
	TLS *TLS `json:"tls,omitempty"`
}

// Sink is the sink that sends the notifications.
func (n *Notify) Sink() HTTPSink {
	s := HTTPSink{URL: n.URL, SigningSecretFile: n.SigningSecretFile, Access: Access{Auth: n.Auth, TLS: n.TLS}}
	s.ApplyDefaults()
	return s
}

// SchemaRegistry is where schemas are read from: Confluent's Schema Registry, or what speaks its API.
// Nothing is ever registered there.
type SchemaRegistry struct {
	// URL is http or https, without user and password. Required.
	URL string `json:"url"`
	// Auth are the credentials of every request. Defaults to none.
	Auth *Auth `json:"auth,omitempty"`
	// TLS is for https URLs; at least one member must be set.
	TLS *TLS `json:"tls,omitempty"`
	// Refresh is how long the latest version of a subject is cached, 1s to 24h. It is read again at once for an event
	// that does not fit. A fixed version is cached for ever. Defaults to 5m.
	Refresh Duration `json:"refresh,omitempty"`
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
