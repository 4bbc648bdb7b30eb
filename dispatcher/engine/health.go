package engine

import (
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// health is what the engine knows of its two ends, the database and the destination. It logs when
// one of them becomes unreachable or recovers, and nothing else.
type health struct {
	log *slog.Logger

	mu          sync.Mutex
	lookedAt    time.Time // when the claim loop last went round
	source      dispatcher.LinkState
	outcomes    dispatcher.LinkState // whether the database takes them
	refusedAt   time.Time            // when it refused one last
	schema      dispatcher.Schema
	destination destination
	gate        gate
	lastError   string
	lastErrorAt time.Time

	types seenTypes // with a lock of its own
}

// refusedFor is how long after a refused outcome the database is said to refuse outcomes.
const refusedFor = 5 * time.Minute

func newHealth(log *slog.Logger) *health {
	return &health{log: log, destination: newDestination(log), gate: newGate(log)}
}

func (h *health) snapshot() dispatcher.Snapshot {
	h.mu.Lock()
	defer h.mu.Unlock()
	return dispatcher.Snapshot{
		LookedAt: h.lookedAt, Source: h.source, Outcomes: h.outcomes, Schema: h.schema,
		Sink: h.destination.link, Breaker: h.destination.state, PausedTopics: h.destination.pausedTopics(), Gated: h.gate.list(),
		LastError: h.lastError, LastErrorAt: h.lastErrorAt, EventTypes: h.types.list(),
	}
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
		h.log.Warn("the database is unreachable; waiting for it", "error", err)
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

// probed notes the result of a probe of the destination. It reports whether claiming has to stop.
func (h *health) probed(err error) (stop bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.destination.probed(err, time.Now())
}

// probeCut notes that a probe was cancelled, without a result.
func (h *health) probeCut() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.destination.probing = false
}

// called notes the outcome of a call for those of its rows that are ours. It reports whether the topic has
// to be paused from now on, and when an event of it was delivered last: see destination.lastDelivered.
func (h *health) called(c call, rows []*row, ours []bool, errs []error) (pauseTopic bool, lastDelivered time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := c.began.Add(c.took)
	var (
		delivered, unreachable bool
		refused                []uuid.UUID
		failure                error // of the destination, perhaps
	)
	for i, row := range rows {
		err := errs[i]
		if !ours[i] {
			continue
		}
		if err == nil {
			delivered = true
			continue
		}
		h.lastError, h.lastErrorAt = c.failure(err).Error(), now
		if _, permanent := dispatcher.PermanentReason(err); permanent || c.cut != nil {
			continue // says nothing of the destination
		}
		failure = err
		if dispatcher.IsUnavailable(err) {
			unreachable = true
		} else {
			refused = append(refused, row.event.ID)
		}
	}
	switch {
	case delivered:
		h.destination.delivered(c.topic, now)
	case len(refused) > 0:
		pauseTopic = h.destination.failed(c.topic, refused, failure, c.began, now)
	case unreachable:
		pauseTopic = h.destination.failed(c.topic, nil, failure, c.began, now)
	}
	return pauseTopic, h.destination.lastDelivered(c.topic)
}

// outcomesTaken notes that the database wrote outcomes back.
func (h *health) outcomesTaken() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.outcomes.Known && !h.outcomes.OK && time.Since(h.refusedAt) < refusedFor {
		return // it may take others than those that it refuses
	}
	setLink(&h.outcomes, nil)
}

// outcomesRefused notes that the database responds, and refuses what is written back of some rows.
func (h *health) outcomesRefused(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refusedAt = time.Now()
	setLink(&h.outcomes, err)
}

// topicPaused reports whether nothing of the topic is to be delivered now.
func (h *health) topicPaused(topic string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.destination.unreachable || h.destination.paused[topic] != nil
}

// permit returns what may be claimed now: see destination and gate.
func (h *health) permit(inFlight func(topic string, since time.Time) bool) permit {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	p := h.destination.permit(now, inFlight)
	if p.wait == 0 {
		h.gate.restrict(&p, now)
	}
	return p
}

// halfOpenBegan: see destination.halfOpenBegan.
func (h *health) halfOpenBegan(topic string, n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.destination.halfOpenBegan(topic, n, time.Now())
}

// setLink notes the outcome of a try, nil for success, and reports whether the state has changed.
func setLink(l *dispatcher.LinkState, err error) (changed bool) {
	ok := err == nil
	changed = !l.Known || l.OK != ok
	if changed {
		l.Since = time.Now()
	}
	l.Known, l.OK, l.Err = true, ok, err
	return changed
}
