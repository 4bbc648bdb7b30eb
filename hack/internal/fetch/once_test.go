package fetch_test

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/outbox-operator/outbox-operator/hack/internal/fetch"
)

// A directory is filled once for each content, also when several want it, and again after a failure.
func TestOnce(t *testing.T) {
	t.Setenv(fetch.CacheVariable, t.TempDir())
	broken := errors.New("no network")
	if _, err := fetch.Once("tool", []byte("v1"), func(string) error { return broken }); !errors.Is(err, broken) {
		t.Fatalf("a failure to fill is %v", err)
	}
	var fills atomic.Int32
	get := func(content string) string {
		dir, err := fetch.Once("tool", []byte(content), func(dir string) error {
			fills.Add(1)
			return os.WriteFile(filepath.Join(dir, "program"), []byte(content), 0o600)
		})
		if got, _ := os.ReadFile(filepath.Join(dir, "program")); err != nil || string(got) != content {
			t.Errorf("%s has %q, %v", content, got, err)
		}
		return dir
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() { get("v1") })
	}
	all.Wait()
	if first, second := get("v1"), get("v2"); first == second || fills.Load() != 2 {
		t.Errorf("%s and %s were filled %d times, want 2", first, second, fills.Load())
	}
}
