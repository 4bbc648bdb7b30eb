package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outbox-operator/outbox-operator/api/spec"
)

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
	CatchUp spec.Duration `json:"catchUp,omitzero"`
}

// ScalingStatus is the number of pods that the backlog needs.
type ScalingStatus struct {
	// recommended is the number of pods that the backlog needs. It stays as it was
	// while the counts are unknown or old.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Recommended int32 `json:"recommended,omitempty"`

	// reason is why recommended has its value, in one word: Sufficient, Waiting (for
	// the pods of the last step), NotObserved, Held (paused, no pods, or a rollout), or
	// the reason of the condition ScalingLimited.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason,omitempty"`

	// perPod is how many events a second a pod delivers while events wait for it,
	// rounded to two significant digits. When not set: it is not known yet.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	PerPod string `json:"perPod,omitempty"`

	// lastStep is the last change of recommended.
	// +optional
	LastStep *ScalingStep `json:"lastStep,omitempty"`
}

// ScalingStep is a change of the number of pods.
type ScalingStep struct {
	// time is when it was decided.
	// +required
	Time metav1.Time `json:"time,omitzero"`

	// from is the number before.
	// +optional
	// +kubebuilder:validation:Minimum=0
	From int32 `json:"from,omitempty"`

	// to is the number since.
	// +optional
	// +kubebuilder:validation:Minimum=0
	To int32 `json:"to,omitempty"`
}
