// Package need decides what a test does when the server that it needs cannot be had: on a developer's
// machine it is skipped and says why, and in CI it fails: else a sink whose broker did not install
// would stay untested.
package need

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// CIVariable names the environment variable that CI services set, and that .ci/run sets too. Anything
// but an empty text, 0 and false means that this is CI.
const CIVariable = "CI"

// Wait is how long a test waits for what must happen. It ends a test that hangs: no test fails because its machine is busy.
const Wait = 5 * time.Minute

// Install is how long a test waits for a server that is installed or built before it starts.
const Install = 30 * time.Minute

// OK ends the test unless err is nil.
func OK(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Err is the error among the results of a call: the last one.
func Err(results ...any) error {
	err, _ := results[len(results)-1].(error)
	return err
}

// That marks the test as failed, with the text, and lets it continue, unless what it says holds.
func That(t testing.TB, holds bool, text string, args ...any) {
	t.Helper()
	if !holds {
		t.Errorf(text, args...)
	}
}

// Must ends the test, with the text, unless what it says holds.
func Must(t testing.TB, holds bool, text string, args ...any) {
	t.Helper()
	if !holds {
		t.Fatalf(text, args...)
	}
}

// Want marks the test as failed, and lets it continue, unless it got what is wanted. The verbs of the text are for also, for what
// the test got, and for what is wanted, which a text may leave out.
func Want[T comparable](t testing.TB, want T, text string, got T, also ...any) {
	t.Helper()
	if got != want {
		t.Errorf(text, append(also, got, want)[:strings.Count(text, "%")]...)
	}
}

// Fails marks the test as failed, and lets it continue, unless the error's text has what is wanted. The verbs of the text are
// for also, for the error, and for what is wanted, which a text may leave out.
func Fails(t testing.TB, want, text string, err error, also ...any) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf(text, append(also, err, want)[:strings.Count(text, "%")]...)
	}
}

// WantAll is Want for slices. One without members is as good as none.
func WantAll[S ~[]E, E comparable](t testing.TB, want S, text string, got S, also ...any) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf(text, append(also, got, want)[:strings.Count(text, "%")]...)
	}
}

// Server ends the test unless err is nil. Where the server is missing, which is when err is one of
// missing, that is a failure in CI and a skip elsewhere. Any other error is a failure.
//
//	broker, err := redis.Start(ctx, redis.Options{})
//	need.Server(t, err, redis.ErrMissing)
func Server(t testing.TB, err error, missing ...error) {
	t.Helper()
	if err == nil {
		return
	}
	for _, m := range missing {
		if errors.Is(err, m) {
			Missing(t, err)
		}
	}
	t.Fatal(err)
}

// Missing ends a test that cannot have what it needs, with the reason and what to do.
func Missing(t testing.TB, reason error) {
	t.Helper()
	if CI() {
		t.Fatalf("%v; %s is set, where nothing that a test needs may be missing: provide it, or unset %[2]s to skip the test", reason, CIVariable)
	}
	t.Skip(reason)
}

// CI reports whether this process runs in CI.
func CI() bool {
	value := os.Getenv(CIVariable)
	on, err := strconv.ParseBool(value)
	return on || value != "" && err != nil
}

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
