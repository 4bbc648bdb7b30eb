package spec

import "encoding/json"

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

// Pods says what the pods of a dispatcher are.
type Pods struct {
	// log configures the logs of the pods.
	// +optional
	// +kubebuilder:default={level: Info}
	Log Log `json:"log,omitzero"`

	// serviceAccount is the identity of the pods, to which roles of a cloud are bound.
	// Its API token is not mounted. When not set: an account of their own, named after
	// the object and -dispatcher.
	// +optional
	ServiceAccount *ServiceAccount `json:"serviceAccount,omitempty"`

	// scaling lets the number of pods follow the backlog. When not set: spec.replicas
	// is the number.
	// +optional
	Scaling *Scaling `json:"scaling,omitempty"`

	// imagePullSecrets name the Secrets for pulling the image, in addition to those of
	// the operator's argument --image-pull-secrets.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	ImagePullSecrets []SecretName `json:"imagePullSecrets,omitempty"`

	// template is merged (as a strategic merge patch) over the pod template that
	// the operator makes: labels, annotations, resources, affinity, tolerations, env,
	// volumes, sidecars, any field of a pod. The dispatcher's container is named
	// "dispatcher". At most 64 KiB of JSON, and 256 entries in each list. The
	// volumes and mounts of the operator, and the service account, are not changed
	// by it. An invalid one stops no running pod; the condition WorkloadAvailable
	// reports the error.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=object
	Template json.RawMessage `json:"template,omitempty"`
}

// Log says what the pods log. No level logs a payload or a secret.
type Log struct {
	// level is the lowest level that is logged: Debug (also each failed delivery),
	// Info, Warn (what a person should see, such as a dead event) or Error. A change
	// rolls the pods. Defaults to Info.
	// +optional
	// +kubebuilder:default=Info
	Level LogLevel `json:"level,omitempty"`
}

// Scaling says how the number of pods follows the backlog.
//
// +kubebuilder:validation:XValidation:rule="self.min <= self.max",message="min must be at most max; lower min or raise max"
type Scaling struct {
	// mode is Recommend or Apply. Recommend reports the number of pods in
	// status.scaling and in the metric outbox_replicas_recommended; Apply also runs so
	// many, whatever spec.replicas says, unless that is 0. Defaults to Recommend.
	// +optional
	// +kubebuilder:default=Recommend
	Mode ScalingMode `json:"mode,omitempty"`

	// min is the least number of pods. From 1 to 100. Defaults to 1.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	Min int32 `json:"min,omitempty"`

	// max is the highest number of pods. From 1 to 100.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	Max int32 `json:"max,omitempty"`

	// catchUp is the time in which the pods should deliver the backlog and what
	// becomes due meanwhile. More pods are needed while they cannot. From 30s to 24h.
	// Defaults to 5m.
	// +optional
	// +kubebuilder:default="5m"
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('30s') && duration(self) <= duration('24h')",message="catchUp must be a duration from 30s to 24h, such as 5m"
	CatchUp Duration `json:"catchUp,omitzero"`
}

// ScalingMode says what becomes of the number of pods that the operator recommends.
// +kubebuilder:validation:Enum=Recommend;Apply
type ScalingMode string

const (
	// ScalingRecommend reports the number, and changes nothing.
	ScalingRecommend ScalingMode = "Recommend"
	// ScalingApply runs so many pods.
	ScalingApply ScalingMode = "Apply"
)
