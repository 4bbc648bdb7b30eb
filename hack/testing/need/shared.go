package need

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
)

// Shared is the one server that the tests of a package share. The first test that needs it starts it. Tests that stop
// it do not run in parallel.
type Shared[S any] struct {
	// Start starts it, within [Install].
	Start func(context.Context) (S, error)
	// Missing is its error where it cannot be had.
	Missing error
	// Server is it, once Get has returned.
	Server S

	once    sync.Once
	err     error
	started bool
}

// Get returns the server. It ends the test as [Server] does.
func (s *Shared[S]) Get(t testing.TB) S {
	t.Helper()
	s.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), Install)
		defer cancel()
		s.Server, s.err = s.Start(ctx)
		s.started = s.err == nil
	})
	Server(t, s.err, s.Missing)
	return s.Server
}

// Main returns what runs the tests, and stops the server after them: func TestMain(m *testing.M)
// { pgtest.Main(theBroker.Main(m)) }.
func (s *Shared[S]) Main(m *testing.M) interface{ Run() int } {
	return run(func() int {
		code := m.Run()
		if stopper, ok := any(s.Server).(interface{ Stop(context.Context) error }); ok && s.started {
			if err := stopper.Stop(context.Background()); err != nil {
				fmt.Fprintln(os.Stderr, err)
				code = max(code, 1)
			}
		}
		return code
	})
}

type run func() int

func (r run) Run() int { return r() }
