// Package observe caches the status of dispatcher pods.
//
// An [Observer] polls each pod every interval, in goroutines of its own, and caches the responses. A pass of the
// reconciler lists the current pods and gets their cached status; no pass waits for a pod. When a response differs
// from the last one in what matters, the Observer triggers a pass.
package observe
