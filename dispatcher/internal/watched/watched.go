// Package watched keeps values that are made from files, and makes them again when the files change.
package watched

import (
	"os"
	"sync"
	"time"
)

// Value is a value that is made from files, and made again when one of them changes.
type Value[T any] struct {
	// Every is the shortest time between two looks at the files. [New] sets it to a second.
	Every time.Duration

	load  func() (T, error)
	paths []string

	mu     sync.Mutex
	looked time.Time
	seen   []os.FileInfo
	value  T
	err    error
	// refused says that the value was refused.
	refused bool
}

// New returns a value that load makes from the files. Nothing is read before the first Get.
func New[T any](load func() (T, error), paths ...string) *Value[T] {
	return &Value[T]{Every: time.Second, load: load, paths: paths}
}

// Get returns the value that the files have now, or had when they were looked at last. After an error of load
// it is loaded again at the next look.
func (w *Value[T]) Get() (T, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	first := w.looked.IsZero()
	if !first && (len(w.paths) == 0 || time.Since(w.looked) < w.Every && !w.refused) {
		return w.value, w.err
	}
	w.refused = false
	w.looked = time.Now()
	// Looked at before they are read: a change in between is seen the next time.
	now := stat(w.paths)
	if first || w.err != nil || !same(w.seen, now) {
		w.seen = now
		w.value, w.err = w.load()
	}
	return w.value, w.err
}

// LookAgain makes the next Get look at the files, however soon it comes: what they held was refused.
func (w *Value[T]) LookAgain() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refused = true
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
