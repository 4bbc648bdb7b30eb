// Package observe keeps what dispatcher pods say of themselves.
//
// An [Observer] asks each pod every interval, in goroutines of its own, and keeps the answers. A pass of the
// reconciler tells it which pods there are and takes what it heard; no pass waits for a pod. When an answer
// differs from the one before in what matters, it asks for a pass.
package observe
