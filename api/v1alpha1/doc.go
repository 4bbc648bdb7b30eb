// Package v1alpha1 is the API of outbox-operator: group outbox.dev, version v1alpha1.
//
// One kind, OutboxDispatcher, says which events of a transactional outbox go where and how. The
// field docs below are what `kubectl explain obd` prints; conditions.go lists every condition and
// reason that its status can have.
//
// +kubebuilder:object:generate=true
// +groupName=outbox.dev
package v1alpha1
