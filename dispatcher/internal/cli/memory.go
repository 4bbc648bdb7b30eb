package cli

import (
	"os"
	"runtime/debug"
)

const (
	// gcPercent lets the heap grow to five times of what is live, which is little: a third of the
	// engine's CPU time goes to the collector otherwise.
	gcPercent = 400
	// memoryLimit makes the collector work harder before rows with large payloads add up to more.
	memoryLimit = 160 << 20
)

// tuneMemory sets the collector for an engine at full speed, unless GOGC or GOMEMLIMIT say otherwise.
func tuneMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryLimit)
	}
}
