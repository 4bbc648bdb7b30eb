package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

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
