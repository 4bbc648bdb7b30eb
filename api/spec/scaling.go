package spec

// ScalingMode says what becomes of the number of pods that the operator recommends.
// +kubebuilder:validation:Enum=Recommend;Apply
type ScalingMode string

const (
	// ScalingRecommend reports the number, and changes nothing.
	ScalingRecommend ScalingMode = "Recommend"
	// ScalingApply runs so many pods.
	ScalingApply ScalingMode = "Apply"
)

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
