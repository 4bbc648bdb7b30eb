// Package scale holds the test of many OutboxDispatchers: a real API server, the manager as a process, and
// stand-ins for what a cluster would do. See README.md.
package scale
