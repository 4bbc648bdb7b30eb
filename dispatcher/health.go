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
	destination destination
	lastError   string
	lastErrorAt time.Time
}

func newHealth(log *slog.Logger) *health {
	return &health{log: log, destination: newDestination(log)}
}

func (h *health) snapshot() Snapshot {
	h.mu.Lock()
	defer h.mu.Unlock()
	return Snapshot{
		LookedAt: h.lookedAt, Source: h.source, Schema: h.schema,
		Sink: h.destination.link, Breaker: h.destination.state, Held: h.destination.heldTopics(),
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

// probed: the destination answered a probe, or failed to. It reports whether claiming has to stop.
func (h *health) probed(err error) (stop bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.destination.probed(err, time.Now())
}

// delivered: the destination confirmed an event.
func (h *health) delivered(e *Event, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.destination.delivered(e.Topic, now)
}

// failed: a delivery by a call that began then failed. It reports whether the topic has to be held
// from now on.
func (h *health) failed(e *Event, err error, began, now time.Time) (hold bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lastError, h.lastErrorAt = err.Error(), now
	if _, permanent := PermanentReason(err); permanent {
		return false // says nothing of the destination
	}
	return h.destination.failed(e, err, began, now)
}

// holds reports whether nothing of the topic is to be delivered now.
func (h *health) holds(topic string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.destination.away || h.destination.held[topic] != nil
}

// partly reports whether the topic is not held, and something of it was delivered in the last minute:
// then an event that finds nobody is an exception, and no breaker will hold it.
func (h *health) partly(topic string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.destination.topics[topic]
	return !h.destination.away && t != nil && t.state == BreakerClosed && time.Since(t.deliveredAt) < time.Minute
}

// ask says whether rows may be claimed now. inFlight tells whether there are rows of a topic.
func (h *health) ask(inFlight func(topic string) bool) permit {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.destination.ask(time.Now(), inFlight)
}

// tried: a trial of a held topic has claimed n rows.
func (h *health) tried(topic string, n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.destination.tried(topic, n, time.Now())
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
