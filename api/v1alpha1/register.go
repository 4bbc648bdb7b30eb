// Package v1alpha1 is the API of outbox-operator: group outbox.dev, version v1alpha1.
//
// An OutboxDispatcher says which events of a transactional outbox go where and how, an Outbox which
// database holds them. Their specs are in package spec, without Kubernetes: what a process reads of the same objects. The field
// docs there and here are what `kubectl explain obd` prints; conditions.go lists every condition and reason that a status can have.
//
// +groupName=outbox.dev
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/outbox-operator/outbox-operator/api/spec"
)

// GroupVersion is outbox.dev/v1alpha1.
var GroupVersion = schema.GroupVersion{Group: "outbox.dev", Version: "v1alpha1"}

// AddToScheme registers this package's kinds in a scheme. It fails when the scheme has another type of that name.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &OutboxDispatcher{}, &OutboxDispatcherList{}, &Outbox{}, &OutboxList{},
		&DeadLetterReplay{}, &DeadLetterReplayList{}, &OutboxConsumer{}, &OutboxConsumerList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}

// DeepCopyInto makes out a copy of s, for the generated copies of objects.
func (s *OutboxConsumerSpec) DeepCopyInto(out *OutboxConsumerSpec) { *out = spec.Copy(*s) }

// DeepCopyInto makes out a copy of s, for the generated copies of objects.
func (s *OutboxConsumerStatus) DeepCopyInto(out *OutboxConsumerStatus) { *out = spec.Copy(*s) }

// DeepCopyInto makes out a copy of s, for the generated copies of objects.
func (s *OutboxDispatcherStatus) DeepCopyInto(out *OutboxDispatcherStatus) { *out = spec.Copy(*s) }

// DeepCopyInto makes out a copy of s, for the generated copies of objects.
func (s *OutboxStatus) DeepCopyInto(out *OutboxStatus) { *out = spec.Copy(*s) }

// DeepCopyInto makes out a copy of s, for the generated copies of objects.
func (s *DeadLetterReplayStatus) DeepCopyInto(out *DeadLetterReplayStatus) { *out = spec.Copy(*s) }
