package spec

// LogLevel is how much is logged.
// +kubebuilder:validation:Enum=Debug;Info;Warn;Error
type LogLevel string

const (
	// LogDebug also logs each failed delivery.
	LogDebug LogLevel = "Debug"
	// LogInfo logs what happens to the dispatcher as a whole.
	LogInfo LogLevel = "Info"
	// LogWarn logs what a person should see.
	LogWarn LogLevel = "Warn"
	// LogError logs what stops the dispatcher.
	LogError LogLevel = "Error"
)

// Annotation is one annotation of an object.
type Annotation struct {
	// name is the key of the annotation.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:XValidation:rule="self.matches('^([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$')",message="name must be the key of an annotation: a name, or a domain, a slash and a name, such as eks.amazonaws.com/role-arn"
	Name string `json:"name,omitempty"`

	// value is the value of the annotation.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	Value string `json:"value,omitempty"`
}

// ServiceAccount is the identity of the pods: exactly one of its members.
//
// +kubebuilder:validation:XValidation:rule="has(self.name) != has(self.annotations)",message="serviceAccount must have exactly one of name and annotations; name an account of yours, or say what the one that the operator makes is annotated with"
type ServiceAccount struct {
	// name is an existing account in the object's namespace. The operator then makes
	// none.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Subdomain().validate(self).hasValue()",message="name must be the name of a ServiceAccount: lower-case alphanumeric characters, dashes and dots, such as orders"
	Name string `json:"name,omitempty"`

	// annotations are the annotations of the account that the operator makes, such as
	// the role of a cloud.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	Annotations []Annotation `json:"annotations,omitempty"`
}
