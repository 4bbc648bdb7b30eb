// Package outboxdispatcher reconciles OutboxDispatchers.
//
// A pass is a list of phases that order thin effects; what they do is decided by pure functions:
//
//	look        reads what is there: the Deployment and its pods       (cache)
//	resolveRefs reads the Secrets that the spec names                  secrets.go
//	config      applies the ServiceAccount and the ConfigMap           internal/desired
//	migrate     runs the migration Job                                 migration.go
//	workload    applies the Deployment and its PodDisruptionBudget     internal/desired
//	observe     asks the pods for their status                         internal/observe
//
// A phase that cannot go on stops those after it, except observe, and never takes away what runs
// (CONTRACT C-101). At the end the conditions are computed from what this pass saw (status.go), never
// from conditions of an earlier pass, and written once, if anything changed. Events come last.
//
// What can be watched is watched. The pods' numbers cannot, so a pass comes again after the observe
// interval; when nothing has changed it writes nothing.
package outboxdispatcher
