package v1alpha1

// DatabaseSecret names a Secret in the same namespace, and its keys.
//
// +kubebuilder:validation:XValidation:rule="!has(self.dsnKey) || !has(self.keys)",message="dsnKey and keys exclude each other; keep dsnKey when the Secret holds a connection string, keys when it holds host, user and password apart"
type DatabaseSecret struct {
	// name is the Secret's name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Subdomain().validate(self).hasValue()",message="name must be the name of a Secret: lower-case alphanumeric characters, dashes and dots, such as orders-db"
	Name string `json:"name,omitempty"`

	// dsnKey is the key that holds a connection string, as a URL or as key=value
	// words. With several hosts the one that accepts writes is used, also after a
	// failover. When neither dsnKey nor keys is set, and there is neither server nor
	// user: dsn.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9._-]+$')",message="dsnKey must be a key of a Secret: alphanumeric characters, dashes, dots and underscores"
	DSNKey string `json:"dsnKey,omitempty"`

	// keys names the keys that each hold one part of the connection, as in the Secrets
	// that database operators make. `keys: {}` fits those of CloudNativePG; with
	// server also those of Zalando's operator, which hold only username and password.
	// When neither keys nor dsnKey is set, and there is a server or a user: {}.
	// +optional
	Keys *ConnectionKeys `json:"keys,omitempty"`
}

// DatabaseServer is the address of a database.
type DatabaseServer struct {
	// host is the host name, or several separated by commas. Of several the one that
	// accepts writes is used, also after a failover.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9._:-]+(,[A-Za-z0-9._:-]+)*$')",message="host must be a host name, or several with commas between them and no spaces, such as orders-db-rw.shop"
	Host string `json:"host,omitempty"`

	// port is the port of each host. From 1 to 65535. Defaults to 5432.
	// +optional
	// +kubebuilder:default=5432
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port,omitempty"`

	// database is the name of the database.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Database string `json:"database,omitempty"`
}

// DatabaseIAM is a login with the pod's identity in a cloud.
//
// +kubebuilder:validation:XValidation:rule="!has(self.region) || self.provider == 'AWS'",fieldPath=".region",message="region belongs to provider AWS; remove it"
type DatabaseIAM struct {
	// provider is AWS, Google or Azure.
	// +required
	// +kubebuilder:validation:Enum=AWS;Google;Azure
	Provider string `json:"provider,omitempty"`

	// region is the region of the database, for AWS. When not set: AWS_REGION in the
	// environment of the pods.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z]{2}(-[a-z]+)+-[0-9]$')",message="region must be the name of a region, such as eu-west-1"
	Region string `json:"region,omitempty"`
}

// ConnectionKeys are keys of a Secret.
//
// +kubebuilder:validation:XValidation:rule="[self.host, self.port, self.database, self.user, self.password].all(key, key.matches('^[A-Za-z0-9._-]+$'))",message="keys must be keys of a Secret: alphanumeric characters, dashes, dots and underscores"
type ConnectionKeys struct {
	// host is the key of the host name, or of several separated by commas. Of several
	// the one that accepts writes is used, also after a failover. Defaults to host.
	// +optional
	// +kubebuilder:default=host
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Host string `json:"host,omitempty"`

	// port is the key of the port: one for all hosts, or one for each, separated by
	// commas. Defaults to port.
	// +optional
	// +kubebuilder:default=port
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Port string `json:"port,omitempty"`

	// database is the key of the database's name. Defaults to dbname.
	// +optional
	// +kubebuilder:default=dbname
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Database string `json:"database,omitempty"`

	// user is the key of the user name. Defaults to username.
	// +optional
	// +kubebuilder:default=username
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	User string `json:"user,omitempty"`

	// password is the key of the password. Defaults to password.
	// +optional
	// +kubebuilder:default=password
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Password string `json:"password,omitempty"`
}

// DatabaseTLS configures TLS for the connections.
//
// +kubebuilder:validation:XValidation:rule="!has(self.mode) || !self.mode.startsWith('verify-') || has(self.ca)",fieldPath=".ca",reason=FieldValueRequired,message="mode verify-ca and verify-full need a ca to verify with; set tls.ca to the Secret or ConfigMap that holds it"
// +kubebuilder:validation:XValidation:rule="!has(self.mode) || self.mode.startsWith('verify-') || !has(self.ca)",fieldPath=".mode",message="only the modes verify-ca and verify-full verify with the ca; set one of them, or remove tls.ca"
type DatabaseTLS struct {
	// mode is disable, prefer, require, verify-ca or verify-full, as in libpq. It
	// overrides the mode in the connection string. When not set: verify-full with a
	// ca, else the mode in the connection string.
	// +optional
	// +kubebuilder:validation:Enum=disable;prefer;require;verify-ca;verify-full
	Mode string `json:"mode,omitempty"`

	// ca holds the PEM certificates that the server is verified with.
	// +optional
	CA *CA `json:"ca,omitempty"`

	// clientCertificate is the certificate of the login, for a server that requires
	// one (clientcert=verify-full, or the method cert). When not set: none.
	// +optional
	ClientCertificate *ClientCertificate `json:"clientCertificate,omitempty"`
}
