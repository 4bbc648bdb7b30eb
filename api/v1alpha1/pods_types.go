package v1alpha1

import (
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/outbox-operator/outbox-operator/api/spec"
)

// Pods says what the pods of a dispatcher are.
type Pods struct {
	// log configures the logs of the pods.
	// +optional
	// +kubebuilder:default={level: Info}
	Log spec.Log `json:"log,omitzero"`

	// serviceAccount is the identity of the pods, to which roles of a cloud are bound.
	// Its API token is not mounted. When not set: an account of their own, named after
	// the object and -dispatcher.
	// +optional
	ServiceAccount *spec.ServiceAccount `json:"serviceAccount,omitempty"`

	// scaling lets the number of pods follow the backlog. When not set: spec.replicas
	// is the number.
	// +optional
	Scaling *spec.Scaling `json:"scaling,omitempty"`

	// imagePullSecrets name the Secrets for pulling the image, in addition to those of
	// the operator's argument --image-pull-secrets.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	ImagePullSecrets []spec.SecretName `json:"imagePullSecrets,omitempty"`

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
	Template *runtime.RawExtension `json:"template,omitempty"`
}
