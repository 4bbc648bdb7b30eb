package fetch_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/hack/internal/fetch"
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
		if err != nil || len(files) != 1 {
			t.Fatalf("Files returned %v, %v; want one file", files, err)
		}
		if text, err := os.ReadFile(files[0]); string(text) != "program" {
			t.Errorf("the file holds %q, %v; want the program", text, err)
		}
	}
	if requests != 1 {
		t.Errorf("%d requests, want 1: the second use finds the file", requests)
	}

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
