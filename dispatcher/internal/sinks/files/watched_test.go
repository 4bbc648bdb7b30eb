package files_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/files"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// Files are looked at now and then, not for each event.
func TestFilesAreNotReadForEachEvent(t *testing.T) {
	path, made := filepath.Join(t.TempDir(), "value"), 0
	write(t, path, "one")
	w := files.Watch(func() (string, error) {
		made++
		content, err := files.Read("field", path)
		return string(content), err
	}, path)
	need.Want(t, time.Second, "files are looked at each %s, want each second", w.Every)
	w.Every = time.Hour
	for range 3 {
		if got, err := w.Get(); got != "one" || err != nil {
			t.Errorf("got %q, %v", got, err)
		}
		write(t, path, "two, and longer")
	}
	w.Every = 0
	for range 3 {
		if got, err := w.Get(); got != "two, and longer" || err != nil {
			t.Errorf("got %q, %v after a change", got, err)
		}
	}
	need.Want(t, 2, "the file was read %d times for two contents", made)
}

// What is wrong with a file may heal without a trace on the file, as its permissions do.
func TestFailuresAreTriedAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "value")
	write(t, path, "one")
	fail := errors.New("permission denied; allow it")
	w := files.Watch(func() (string, error) { return "one", fail }, path)
	w.Every = 0
	if _, err := w.Get(); !errors.Is(err, fail) {
		t.Errorf("got %v, want %v", err, fail)
	}
	fail = nil
	if got, err := w.Get(); got != "one" || err != nil {
		t.Errorf("got %q, %v after the failure healed", got, err)
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	need.OK(t, os.WriteFile(path, []byte(content), 0o600))
}
