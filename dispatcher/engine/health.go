package engine

import (
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// health is what the engine knows of the database. It logs when that becomes unreachable or recovers. Type destination
// is what it knows of the other end.
type health struct {
	log *slog.Logger

	mu       sync.Mutex
	lookedAt time.Time // when the claim loop last went round
	source   dispatcher.LinkState
	outcomes rowsLink // whether the database takes them
	claims   rowsLink // whether it lets rows be leased
	schema   dispatcher.Schema

	types seenTypes // with a lock of its own
}

// rowsLink is whether the database takes what is done with rows: it may refuse some, and take others.
type rowsLink struct {
	dispatcher.LinkState
	refusedAt time.Time // the last one
}

// refusedFor is how long after a refused row the database is said to refuse rows: somewhat longer than a row is left alone.
const refusedFor = skipFor + 30*time.Second

// snapshot sets what is known of the database.
func (h *health) snapshot(s *dispatcher.Snapshot) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, l := range []*rowsLink{&h.outcomes, &h.claims} {
		if l.Known && time.Since(l.refusedAt) > refusedFor {
			setLink(&l.LinkState, nil)
		}
	}
	s.LookedAt, s.Source, s.Outcomes, s.Claims, s.Schema = h.lookedAt, h.source, h.outcomes.LinkState, h.claims.LinkState, h.schema
	s.EventTypes = h.types.list()
}

// alive notes that the claim loop runs.
func (h *health) alive() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lookedAt = time.Now()
}

// sourceFailed notes that a statement of the database failed.
func (h *health) sourceFailed(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if setLink(&h.source, err) {
		what := "the database is unreachable; waiting for it"
		if server := (interface{ SQLState() string })(nil); errors.As(err, &server) && server.SQLState() == "53300" {
			what = "the database allows this login too few connections; waiting for one"
		}
		h.log.Warn(what, "error", err)
	}
}

// sourceResponded notes that the database's statements succeed.
func (h *health) sourceResponded() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if setLink(&h.source, nil) {
		h.log.Info("the database responds")
	}
}

// schemaCompared notes the outcome of Store.Schema.
func (h *health) schemaCompared(s dispatcher.Schema) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s.State != h.schema.State {
		switch s.State {
		case dispatcher.SchemaReady:
			h.log.Info("the outbox schema is ready", "version", s.Version)
		default:
			h.log.Warn("the outbox schema is not ready; waiting for it", "state", s.State,
				"version", s.Version, "required", s.Required, "message", s.Message)
		}
	}
	h.schema = s
}

// sourceReady reports whether the schema was ready and the database has not failed since.
func (h *health) sourceReady() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.source.OK && h.schema.State == dispatcher.SchemaReady
}

// refused notes that the database responds, and refuses to lease a row, or what is written back of some.
func (h *health) refused(l *rowsLink, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	l.refusedAt = time.Now()
	setLink(&l.LinkState, err)
}
