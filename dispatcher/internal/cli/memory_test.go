package cli

import (
	"os"
	"path/filepath"
	"testing"
)

// A container that may take little memory has a lower limit; without one, or outside, it is the default.
func TestSoftLimitFollowsTheContainer(t *testing.T) {
	dir := t.TempDir()
	if got := softLimit(filepath.Join(dir, "none")); got != memoryLimit {
		t.Errorf("%d without the file, want %d", got, memoryLimit)
	}
	file := filepath.Join(dir, "memory.max")
	for text, want := range map[string]int64{"max\n": memoryLimit, "134217728\n": 96 << 20, "8589934592\n": memoryLimit} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := softLimit(file); got != want {
			t.Errorf("%d of %q, want %d", got, text, want)
		}
	}
}
