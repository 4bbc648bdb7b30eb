package v1alpha1

import "github.com/outbox-operator/outbox-operator/api/spec"

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
