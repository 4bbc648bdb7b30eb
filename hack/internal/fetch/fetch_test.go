package fetch_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/outbox-operator/outbox-operator/hack/internal/fetch"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

func TestFilesAreFetchedOnceAndVerified(t *testing.T) {
	requests := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests++
		if r.URL.Path != "/org/one.jar" {
			http.NotFound(w, r)
			return
		}
		fmt.Fprint(w, "program")
	}))
	t.Cleanup(server.Close)
	t.Setenv(fetch.MirrorVariable, server.URL+"/")
	t.Setenv(fetch.CacheVariable, t.TempDir())

	sums := fmt.Sprintf("%x  org/one.jar\n", sha256.Sum256([]byte("program")))
	for range 2 {
		files, err := fetch.Files(t.Context(), sums)
		need.Must(t, err == nil && len(files) == 1, "Files returned %v, %v; want one file", files, err)
		if text, err := os.ReadFile(files[0]); string(text) != "program" {
			t.Errorf("the file holds %q, %v; want the program", text, err)
		}
	}
	need.That(t, requests == 1, "%d requests, want 1: the second use finds the file", requests)

	for sums, want := range map[string]string{
		fmt.Sprintf("%x  org/one.jar\n", sha256.Sum256([]byte("another"))): "has the checksum",
		fmt.Sprintf("%x  org/two.jar\n", sha256.Sum256([]byte("program"))): "404",
	} {
		if files, err := fetch.Files(t.Context(), sums); !errors.Is(err, fetch.ErrMissing) || !strings.Contains(err.Error(), want) {
			t.Errorf("Files(%q) returned %v, %v; want ErrMissing and %q", sums, files, err, want)
		}
	}
	server.Close()
	if _, err := fetch.Files(t.Context(), sums); err != nil {
		t.Errorf("what is in the cache needs no repository: %v", err)
	}
}

// A directory is filled once for each content, also when several want it, and again after a failure.
func TestDirectoryIsFilledOnce(t *testing.T) {
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
