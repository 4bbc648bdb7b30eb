package dispatcher

import (
	"log/slog"
	"sync"
	"time"
)

// health is what the engine knows of its two ends, the database and the destination. It logs when
// one of them goes away or comes back, and never more than that.
type health struct {
	log *slog.Logger

	mu          sync.Mutex
	lookedAt    time.Time // when the claim loop last went round
	source      LinkState
	schema      Schema
	sink        LinkState
	breaker     breaker
	lastError   string
	lastErrorAt time.Time
}

func newHealth(log *slog.Logger) *health { return &health{log: log, breaker: newBreaker()} }

func (h *health) snapshot() Snapshot {
	h.mu.Lock()
	defer h.mu.Unlock()
	return Snapshot{
		LookedAt: h.lookedAt, Source: h.source, Schema: h.schema, Sink: h.sink, Breaker: h.breaker.state,
		LastError: h.lastError, LastErrorAt: h.lastErrorAt,
	}
}

// alive: the claim loop goes round.
func (h *health) alive() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lookedAt = time.Now()
}

// sourceFailed: the database did not do what it was asked.
func (h *health) sourceFailed(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.source.set(err) {
		h.log.Warn("the database is away; waiting for it", "error", err)
	}
}

// sourceAnswers: the database does what it is asked.
func (h *health) sourceAnswers() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.source.set(nil) {
		h.log.Info("the database answers")
	}
}

// schemaCompared notes the outcome of Store.Schema.
func (h *health) schemaCompared(s Schema) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s.State != h.schema.State {
		switch s.State {
		case SchemaReady:
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
	return h.source.OK && h.schema.State == SchemaReady
}

// probed: the destination answered a probe, or failed to.
func (h *health) probed(err error) {
	h.change(func() { h.breaker.probed(err == nil, time.Now()) }, err)
}

// delivered: the destination confirmed an event.
func (h *health) delivered() { h.change(h.breaker.delivered, nil) }

// failed: a delivery failed. It reports whether the breaker has just opened.
func (h *health) failed(e *Event, err error) (opened bool) {
	h.mu.Lock()
	h.lastError, h.lastErrorAt = err.Error(), time.Now()
	h.mu.Unlock()
	if _, permanent := PermanentReason(err); permanent {
		return false // says nothing of the destination
	}
	return h.change(func() {
		if IsUnavailable(err) {
			h.breaker.unavailable(time.Now())
		} else {
			h.breaker.refused(e.ID, time.Now())
		}
	}, err)
}

// change lets the breaker take note of something, and follows it: the sink's link is up while the
// breaker is closed.
func (h *health) change(note func(), err error) (opened bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	before := h.breaker.state
	note()
	state := h.breaker.state
	if state == BreakerClosed {
		err = nil
	}
	h.sink.set(err)
	if state == before {
		return false
	}
	switch state {
	case BreakerClosed:
		h.log.Info("the destination is back")
	case BreakerUnreachable:
		h.log.Warn("the destination cannot be reached; claiming waits for it, and no attempts are spent", "error", err)
	case BreakerRefusing:
		h.log.Warn("the destination refuses every event; trying a few at a time", "failures", h.breaker.run, "error", err)
	}
	return state != BreakerClosed
}

// ask says whether rows may be claimed now.
func (h *health) ask() permit {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.sink.Known {
		return permit{probe: true}
	}
	return h.breaker.ask(time.Now())
}

func (h *health) breakerState() BreakerState {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.breaker.state
}

// set notes the outcome of a try, nil for success, and reports whether the state has changed.
func (l *LinkState) set(err error) (changed bool) {
	ok := err == nil
	changed = !l.Known || l.OK != ok
	if changed {
		l.Since = time.Now()
	}
	l.Known, l.OK, l.Err = true, ok, err
	return changed
}
