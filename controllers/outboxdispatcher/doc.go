// Package outboxdispatcher reconciles OutboxDispatchers.
//
// A pass is a list of phases that order thin effects; what they do is decided by pure functions:
//
//	look        reads what is there: the Deployment and its pods       (cache)
//	            and what the pods said last                            internal/observe
//	stop        applies fewer replicas and the state, before the rest  stop.go
//	findPeers   finds others that claim from the same tables           turn.go
//	resolve     puts the spec of the Outbox in the place of its name   outbox.go
//	config      applies the ServiceAccount and the files of the pods   internal/desired
//	network     applies the NetworkPolicy                              network.go
//	migrate     runs the migration Job, or watches that of another     outbox.go
//	workload    applies the Deployment and its PodDisruptionBudget     internal/desired
//	resume      lets pods claim again after a rollout                  stop.go
//	collect     deletes files that nothing names any more              internal/apply
//
// A phase that fails skips those after it, and never removes what runs (CONTRACT C-101). Then the
// pass reads what the kubelet (internal/references) and the pods (messages.go, internal/observe) report: the operator
// reads no Secret and compiles no expression. At the end the conditions are computed from what this pass saw
// (conditions.go, ready.go), never from conditions of an earlier pass, and written once, if anything changed. Events
// come last.
//
// What can be watched is watched. The pods' numbers cannot: an observer polls them, and triggers a pass when they
// changed (watch.go), with a lower priority than one after an edit. A pass polls no pod itself.
package outboxdispatcher
