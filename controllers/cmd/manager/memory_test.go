package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestSoftLimitFollowsTheMemoryLimit(t *testing.T) {
	for text, want := range map[string]int64{"268435456\n": memoryLimit, "1073741824\n": 576 << 20, "max\n": memoryLimit, "": memoryLimit} {
		file := filepath.Join(t.TempDir(), "memory.max")
		if text != "" {
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got := softLimit(file); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}
