package files

import "github.com/outbox-operator/outbox-operator/dispatcher/internal/watched"

// Watched is a value that is made from files, and made again when one of them changes.
type Watched[T any] = watched.Value[T]

// Watch returns a value that load makes from the files. Nothing is read before the first Get.
func Watch[T any](load func() (T, error), paths ...string) *Watched[T] {
	return watched.New(load, paths...)
}
