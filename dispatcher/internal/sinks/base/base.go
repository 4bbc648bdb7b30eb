// Package base has what the sinks have in common. What knows a protocol stays in each of them: which bytes were
// sent, and what a response means.
package base

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
)

// Made returns the sink that build made, or its error alone: a Sink that holds a nil pointer is not nil. A sink is not
// made when its settings contradict themselves. Files, the environment and the servers are first looked at by Probe and
// Deliver, so that what is wrong with them can heal.
func Made[S dispatcher.Sink](s S, err error) (dispatcher.Sink, error) {
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Route says which place in a destination an event goes to, such as a topic or a queue.
type Route = func(*dispatcher.Event) (string, error)

// Place is where the events of a sink go.
type Place struct {
	// Only is where every event goes; "" when routes or the events' own topics say so.
	Only string
	// Of is where an event goes.
	Of Route
}

// PlaceOf returns the place that route says. Where route is nil every event goes to only, or without that to
// the place of its own topic's name.
func PlaceOf(route Route, only string) Place {
	if route != nil {
		return Place{Of: route}
	}
	return Place{only, func(e *dispatcher.Event) (string, error) { return cmp.Or(only, e.Topic), nil }}
}

// Deliver makes the messages of a batch, has send deliver those that could be made, in their order, and
// returns a result for each event. send returns one for each message, and is not called with none.
// class of the causes of failures.
func Deliver[M any](class string, batch []*dispatcher.Event, message func(*dispatcher.Event) (M, error), send func([]M) []error) (errs []error) {
	defer reason.Classify(class, &errs)
	errs = make([]error, len(batch))
	messages, of := make([]M, 0, len(batch)), make([]int, 0, len(batch)) // of is the place of each message's event
	for i, e := range batch {
		m, err := message(e)
		if errs[i] = err; err == nil {
			messages, of = append(messages, m), append(of, i)
		}
	}
	if len(messages) == 0 {
		return errs
	}
	for i, err := range send(messages) {
		errs[of[i]] = err
	}
	return errs
}

// Server is what a sink connects to.
type Server struct {
	reason.Peer
	// Kind and At are its kind and its addresses, as errors name them: "Kafka" and "a:9092, b:9092".
	Kind, At string
	// Doing is what the sink does there, such as "producing to".
	Doing string
	// Limit is how long a connection may take.
	Limit time.Duration
	// Explain gives a failure to connect its word and its remedy, where the protocol says more than the network.
	Explain func(error) error
}

// Interrupted is the outcome of a delivery whose context ended.
func (s *Server) Interrupted(ctx context.Context) error { return Interrupted(ctx, s.Doing+" "+s.At) }

// Unreachable is a failure before anything of a delivery was sent.
func (s *Server) Unreachable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return s.Interrupted(ctx)
	}
	return dispatcher.Unavailable(s.ConnectFailure(err))
}

// ConnectFailure says why there is no connection.
func (s *Server) ConnectFailure(err error) error {
	return s.Peer.Unreachable(s.Kind+" at "+s.At, s.Limit, s.Explain(err))
}

// Interrupted is the outcome of doing something whose context ended.
func Interrupted(ctx context.Context, doing string) error {
	return fmt.Errorf("%s was interrupted: %w", doing, ctx.Err())
}

// ErrPending is the result of a message that has none yet.
var ErrPending = errors.New("not confirmed")

// Results of messages that are confirmed one by one. They are safe for concurrent use.
type Results struct {
	// Done is closed when each message has its result.
	Done chan struct{}

	mu      sync.Mutex
	errs    []error
	pending int
}

// NewResults returns the results of n messages, which is not 0: [ErrPending] for each.
func NewResults(n int) *Results {
	return &Results{Done: make(chan struct{}), errs: slices.Repeat([]error{ErrPending}, n), pending: n}
}

// Set notes a message's result. It is called once for each message at most.
func (r *Results) Set(i int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errs[i] = err
	if r.pending--; r.pending == 0 {
		close(r.Done)
	}
}

// Now returns the results that are there, with missing for the others.
func (r *Results) Now(missing error) []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	errs := slices.Clone(r.errs)
	for i, err := range errs {
		if errors.Is(err, ErrPending) {
			errs[i] = missing
		}
	}
	return errs
}

// Version of this module's build, as servers list it among their clients' software. "" when the build
// does not know it.
func Version() string {
	const module = "github.com/outbox-operator/outbox-operator"
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range append(info.Deps, &info.Main) {
			if m.Path == module && m.Version != "(devel)" {
				return m.Version
			}
		}
	}
	return ""
}
