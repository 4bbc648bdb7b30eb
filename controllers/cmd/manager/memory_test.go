package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

func TestSoftLimitFollowsTheMemoryLimit(t *testing.T) {
	for text, want := range map[string]int64{"268435456\n": memoryLimit, "1073741824\n": 576 << 20, "max\n": memoryLimit, "": memoryLimit} {
		file := filepath.Join(t.TempDir(), "memory.max")
		if text != "" {
			need.OK(t, os.WriteFile(file, []byte(text), 0o600))
		}
		need.Want(t, want, "%q: %d, want %d", softLimit(file), text)
	}
}
