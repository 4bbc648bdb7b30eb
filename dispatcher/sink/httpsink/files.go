package httpsink

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher/config"
)

// watched is a value that is made from files, and made again when one of them changes.
type watched[T any] struct {
	load  func() (T, error)
	paths []string
	// every is the shortest time between two looks at the files.
	every time.Duration

	mu     sync.Mutex
	looked time.Time
	seen   []os.FileInfo
	value  T
	err    error
}

func newWatched[T any](load func() (T, error), paths ...string) *watched[T] {
	return &watched[T]{load: load, paths: paths, every: time.Second}
}

// get returns the value that the files have now, or had within the last second.
func (w *watched[T]) get() (T, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	first := w.looked.IsZero()
	if !first && (len(w.paths) == 0 || time.Since(w.looked) < w.every) {
		return w.value, w.err
	}
	w.looked = time.Now()
	// Looked at before they are read: a change in between is seen the next time.
	now := stat(w.paths)
	if first || w.err != nil || !same(w.seen, now) {
		w.seen = now
		w.value, w.err = w.load()
	}
	return w.value, w.err
}

// stat follows symbolic links, so it sees a Kubernetes Secret change.
func stat(paths []string) []os.FileInfo {
	infos := make([]os.FileInfo, len(paths))
	for i, path := range paths {
		infos[i], _ = os.Stat(path) // a missing file is nil, and load says so
	}
	return infos
}

func same(a, b []os.FileInfo) bool {
	for i := range b {
		if a[i] == nil || b[i] == nil || !os.SameFile(a[i], b[i]) ||
			!a[i].ModTime().Equal(b[i].ModTime()) || a[i].Size() != b[i].Size() {
			return false
		}
	}
	return true
}

// read returns a file's content without the line end that editors and echo leave. The error names
// the field and the file.
func read(field, path string) ([]byte, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w; make the file, or correct its path", field, err)
	}
	content = bytes.TrimRight(content, "\r\n")
	if len(content) == 0 {
		return nil, fmt.Errorf("%s: %s is empty; write the value into it", field, path)
	}
	return content, nil
}

// newAuthorization returns the value of the header Authorization, "" for none.
func newAuthorization(auth *config.HTTPAuth) (*watched[string], error) {
	switch {
	case auth == nil, auth.BearerTokenFile == "" && auth.Basic == nil:
		return newWatched(func() (string, error) { return "", nil }), nil
	case auth.BearerTokenFile != "" && auth.Basic != nil:
		return nil, errors.New("http sink: auth has bearerTokenFile and basic; keep one of them")
	case auth.Basic == nil:
		path := auth.BearerTokenFile
		return newWatched(func() (string, error) { return bearer(path) }, path), nil
	case auth.Basic.UsernameFile == "" || auth.Basic.PasswordFile == "":
		return nil, errors.New("http sink: auth.basic needs usernameFile and passwordFile; set both")
	default:
		user, password := auth.Basic.UsernameFile, auth.Basic.PasswordFile
		return newWatched(func() (string, error) { return basic(user, password) }, user, password), nil
	}
}

func bearer(path string) (string, error) {
	token, err := read("auth.bearerTokenFile", path)
	if err != nil {
		return "", err
	}
	if bytes.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", fmt.Errorf("auth.bearerTokenFile: %s holds spaces, line breaks or other characters that no token has; write the token alone into it", path)
	}
	return "Bearer " + string(token), nil
}

func basic(userFile, passwordFile string) (string, error) {
	user, err := read("auth.basic.usernameFile", userFile)
	if err != nil {
		return "", err
	}
	if strings.Contains(string(user), ":") {
		return "", fmt.Errorf("auth.basic.usernameFile: %s holds a colon, which a user name cannot have; write the name alone into it", userFile)
	}
	password, err := read("auth.basic.passwordFile", passwordFile)
	if err != nil {
		return "", err
	}
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(string(user)+":"+string(password))), nil
}
