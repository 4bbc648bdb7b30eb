// Package files reads the credentials and certificates that a sink's configuration names. They rotate
// without a restart: what is made from a file is made again when the file changes. Errors name the
// field, the file and the remedy, never what the file holds (CONTRACT C-73).
package files

import (
	"bytes"
	"fmt"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/watched"
)

// Read returns a file's content without the line end that editors and echo leave. An empty file is an
// error. field is the field of the sink's configuration that names the file.
func Read(field, path string) ([]byte, error) {
	content, err := spec.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w; make the file, or correct its path", field, err)
	}
	content = bytes.TrimRight(content, "\r\n")
	if len(content) == 0 {
		return nil, fmt.Errorf("%s: %s is empty; write the value into it", field, path)
	}
	return content, nil
}

// Watched is a value that is made from files, and made again when one of them changes.
type Watched[T any] = watched.Value[T]

// Watch returns a value that load makes from the files. Nothing is read before the first Get.
func Watch[T any](load func() (T, error), paths ...string) *Watched[T] {
	return watched.New(load, paths...)
}
