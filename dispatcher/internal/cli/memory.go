package cli

import (
	"os"
	"runtime/debug"
	"strconv"
	"strings"
)

const (
	// gcPercent lets the heap grow to two and a quarter times of what is live. At 150 and more a dispatcher
	// at full speed now and then takes more than 64 MiB (61 to 65; at 125 58 to 62), and at 100 it takes
	// a tenth more CPU time.
	gcPercent = 125
	// memoryLimit makes the collector work harder before rows with large payloads add up to more.
	memoryLimit = 160 << 20
)

// tuneMemory sets the collector for an engine at full speed, unless GOGC or GOMEMLIMIT say otherwise.
func tuneMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(softLimit("/sys/fs/cgroup/memory.max"))
	}
}

// softLimit is memoryLimit, or three quarters of what the container may take, as the file says, if that
// is less: the rest is for the program itself.
func softLimit(file string) int64 {
	text, _ := os.ReadFile(file) // outside of a container there is none, and without a limit it says max
	limit, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return memoryLimit
	}
	return min(memoryLimit, limit/4*3)
}
