package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// The budget follows from the container's limit, and the limit that the container is given from the budget.
func TestTheMemoryBudgetAndItsLimitFit(t *testing.T) {
	for text, want := range map[string]int64{"268435456\n": 192 << 20, "1073741824\n": 768 << 20, "max\n": 192 << 20, "": 192 << 20} {
		file := filepath.Join(t.TempDir(), "memory.max")
		if text != "" {
			need.OK(t, os.WriteFile(file, []byte(text), 0o600))
		}
		need.Want(t, want, "%q: %d, want %d", memoryBudget(file), text)
	}
	for _, file := range []string{"config/manager/deployment.yaml", "charts/outbox-operator/values.yaml"} {
		text, err := os.ReadFile(filepath.Join("..", "..", "..", file))
		need.OK(t, err)
		limit := fmt.Sprintf("limits:\n *memory: %dMi\n", memoryLimit>>20)
		need.That(t, regexp.MustCompile(limit).Match(text), "%s does not have %q", file, limit)
	}
}
