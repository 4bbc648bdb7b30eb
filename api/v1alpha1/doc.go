// Package v1alpha1 is the API of outbox-operator: group outbox.dev, version v1alpha1.
//
// An OutboxDispatcher says which events of a transactional outbox go where and how, an Outbox which
// database holds them. Their specs are in package spec, without Kubernetes: what a process reads of the same objects. The field
// docs there and here are what `kubectl explain obd` prints; conditions.go lists every condition and reason that a status can have.
//
// +groupName=outbox.dev
package v1alpha1
