package files

import (
	"os"
	"sync"
	"time"
)

// Watched is a value that is made from files, and made again when one of them changes.
type Watched[T any] struct {
	// Every is the shortest time between two looks at the files. [Watch] sets it to a second.
	Every time.Duration

	load  func() (T, error)
	paths []string

	mu     sync.Mutex
	looked time.Time
	seen   []os.FileInfo
	value  T
	err    error
}

// Watch returns a value that load makes from the files. Nothing is read before the first Get.
func Watch[T any](load func() (T, error), paths ...string) *Watched[T] {
	return &Watched[T]{Every: time.Second, load: load, paths: paths}
}

// Get returns the value that the files have now, or had when they were looked at last. After an error of load
// it is loaded again at the next look.
func (w *Watched[T]) Get() (T, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	first := w.looked.IsZero()
	if !first && (len(w.paths) == 0 || time.Since(w.looked) < w.Every) {
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
