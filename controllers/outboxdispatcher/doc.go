// Package outboxdispatcher reconciles OutboxDispatchers.
//
// A pass is a list of phases that order thin effects; what they do is decided by pure functions:
//
//	look        reads what is there: the Deployment and its pods       (cache)
//	            and what the pods said last                            internal/observe
//	stop        applies fewer replicas and the state, before the rest  stop.go
//	findPeers   finds others that claim from the same tables           peers.go
//	resolve     puts the spec of the Outbox in the place of its name   outbox.go
//	config      applies the ServiceAccount and the files of the pods   internal/desired
//	network     applies the NetworkPolicy                              network.go
//	migrate     runs the migration Job, or looks at that of another    outbox.go
//	workload    applies the Deployment and its PodDisruptionBudget     internal/desired
//	resume      lets pods claim again after a rollout                  stop.go
//	collect     deletes files that nothing names any more              collect.go
//
// A phase that cannot go on stops those after it, and never takes away what runs (CONTRACT C-101). Then the
// pass hears what the kubelet (internal/references) and the pods (refusal.go, internal/observe) say: the operator
// reads no Secret and compiles no expression. At the end the conditions are computed from what this pass saw
// (conditions.go, ready.go), never from conditions of an earlier pass, and written once, if anything changed. Events
// come last.
//
// What can be watched is watched. The pods' numbers cannot: an observer asks for them, and for a pass when
// they changed (watch.go). Such a pass waits behind those that an edit asks for, and asks no pod itself.
package outboxdispatcher
