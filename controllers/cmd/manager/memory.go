package main

import (
	"os"
	"runtime/debug"
	"strconv"
	"strings"
)

// memoryLimit makes the collector work harder before a thousand OutboxDispatchers take 200 MiB.
const memoryLimit = 144 << 20

// limitMemory sets the collector's limit, unless GOMEMLIMIT says otherwise.
func limitMemory() {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(softLimit("/sys/fs/cgroup/memory.max"))
	}
}

// softLimit is nine sixteenths of what the container may take, as the file says: 144 of the 256 MiB that config/manager
// gives it, and more where more OutboxDispatchers need more. Where the file says none it is memoryLimit.
func softLimit(file string) int64 {
	text, _ := os.ReadFile(file) // outside of a container there is none, and without a limit it says max
	limit, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return memoryLimit
	}
	return limit / 16 * 9
}
