package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// history is everything that is known of a run when it is over.
type history struct {
	events map[uuid.UUID]*event
	faults []injected
	wrong  []string
	// began and ended are when producers ran.
	began, ended time.Time
	// over is when the dispatchers were stopped.
	over time.Time
	// requests are the times at which requests arrived, in order, and limit how many may begin in a second; 0 means no limit.
	requests []time.Time
	limit    int
	// arrivals are the times of all deliveries, in order.
	arrivals []time.Time
	lease    time.Duration
	// bound is how long the rows of a killed dispatcher may wait.
	bound   time.Duration
	ordered bool
	// copies are the destinations that events are copied to.
	copies []string
	// dispatchers is how many there are while nothing is wrong.
	dispatchers int
}

// event is what became of one event: what its producer says, what its row went through, and what the
// consumer got.
type event struct {
	id          uuid.UUID
	known       bool // a producer reports it
	committed   bool
	committedAt time.Time // when the producer knew; zero when it never learned
	seq         int64
	topic, key  string
	eventType   string
	tenant      uuid.UUID
	maxAttempts int // its own; 0 for the dispatchers'
	expires     time.Time
	originalID  uuid.UUID
	original    *event   // of a copy
	copies      []*event // of an original
	moves       []move
	deliveries  []delivery
	// taken is when a producer had heard that it is withdrawn, and committed; late says that one heard that it is too late.
	taken time.Time
	late  bool
	// deadLetters are its records, and replayed those that say that it was replayed.
	deadLetters, replayed int
	// sent is how many requests with it reached the consumer, whatever their response.
	sent int
}

// move is a transition of a row.
type move struct {
	tx       uint64
	began    time.Time // of its transaction
	at       time.Time
	byClock  time.Time // at, by the server's clock, which may be wrong
	verb     verb
	from, to state
	reason   string // why it is dead
	err      string // that it wrote
}

// state is what a transition changes of a row.
type state struct {
	status   string // empty when there is no row
	attempts int
	lease    int64
	worker   uuid.UUID
	until    time.Time
	waits    bool // it is not due yet; known of a row that was given back
}

// load reads the witness, and the journals of the producers and the consumer.
func (w *world) load(ctx context.Context) (*history, error) {
	h := &history{events: map[uuid.UUID]*event{}, lease: w.lease, bound: w.bound(), ordered: w.ordered, dispatchers: len(w.slots)}
	if w.copies > 0 {
		h.copies = w.sent()
	}
	if w.paced {
		h.limit = w.limit() * max(1, w.copies)
	}
	w.mu.Lock()
	h.faults, h.wrong = slices.Clone(w.faults), w.wrong
	w.mu.Unlock()
	if err := h.readAudit(ctx, w); err != nil {
		return nil, fmt.Errorf("read the audit: %w", err)
	}
	if err := h.readDeadLetters(ctx, w); err != nil {
		return nil, fmt.Errorf("read the dead letters: %w", err)
	}
	files, err := filepath.Glob(filepath.Join(w.dir, "*.transactions"))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		if err := h.readTransactions(file); err != nil {
			return nil, err
		}
	}
	for _, file := range []string{"deliveries.stalls", "stalls"} {
		err := lines(filepath.Join(w.dir, file), func(p pause) {
			h.faults = append(h.faults, injected{kind: stall, start: p.From, end: p.To})
		})
		if err != nil {
			return nil, err
		}
	}
	if err := lines(w.deliveriesFile()+".requests", func(r request) {
		h.event(r.ID).sent++
		h.requests = append(h.requests, r.At)
	}); err != nil {
		return nil, err
	}
	err = lines(w.deliveriesFile(), func(d delivery) {
		e := h.event(d.ID)
		e.deliveries = append(e.deliveries, d)
		h.arrivals = append(h.arrivals, d.At)
	})
	h.linkCopies()
	return h, err
}

func (h *history) event(id uuid.UUID) *event {
	e := h.events[id]
	if e == nil {
		e = &event{id: id}
		h.events[id] = e
	}
	return e
}

func (h *history) readAudit(ctx context.Context, w *world) error {
	rows, err := w.admin.Query(ctx, `select tx::text::bigint, began, at, by_clock, id, coalesce(seq, 0), coalesce(topic, ''), coalesce(key, ''),
			original, coalesce(type, ''), tenant, coalesce(max_attempts, 0), expires,
			coalesce(old_status, ''), coalesce(old_attempts, 0), coalesce(old_lease, 0), old_worker, old_until,
			coalesce(status, ''), coalesce(attempts, 0), coalesce(lease, 0), worker, until, coalesce(waits, false),
			coalesce(reason, ''), coalesce(error, '')
		from chaos.audit order by n`)
	if err != nil {
		return err
	}
	var (
		m                     move
		id                    [16]byte
		seq                   int64
		topic, key, eventType string
		maxAttempts           int
		oldWorker, taker, of  uuid.NullUUID
		original              uuid.NullUUID
		oldUntil, until, over *time.Time
	)
	targets := []any{&m.tx, &m.began, &m.at, &m.byClock, &id, &seq, &topic, &key, &original, &eventType, &of, &maxAttempts, &over,
		&m.from.status, &m.from.attempts, &m.from.lease, &oldWorker, &oldUntil,
		&m.to.status, &m.to.attempts, &m.to.lease, &taker, &until, &m.to.waits, &m.reason, &m.err}
	_, err = pgx.ForEachRow(rows, targets, func() error {
		m.from.worker, m.to.worker = oldWorker.UUID, taker.UUID
		m.from.until, m.to.until = valueOf(oldUntil), valueOf(until)
		m.verb = verbOf(m.from, m.to)
		e := h.event(id)
		if m.verb == insert {
			e.seq, e.topic, e.key, e.originalID, e.eventType, e.tenant, e.maxAttempts, e.expires = seq, topic, key, original.UUID, eventType, of.UUID, maxAttempts, valueOf(over)
		}
		e.moves = append(e.moves, m)
		return nil
	})
	return err
}

func (h *history) readDeadLetters(ctx context.Context, w *world) error {
	rows, err := w.admin.Query(ctx, `select event_id, count(*), count(*) filter (where resolution = 'replayed')
		from outbox.outbox_dead_letters group by event_id`)
	if err != nil {
		return err
	}
	var (
		id                    [16]byte
		deadLetters, replayed int
	)
	_, err = pgx.ForEachRow(rows, []any{&id, &deadLetters, &replayed}, func() error {
		e := h.event(id)
		e.deadLetters, e.replayed = deadLetters, replayed
		return nil
	})
	return err
}

// readTransactions reads a producer's journal. A transaction whose outcome the producer never learned is
// committed if its rows were there.
func (h *history) readTransactions(file string) error {
	open := map[uuid.UUID][]uuid.UUID{} // by the first event
	err := lines(file, func(t entry) {
		for _, id := range t.Late {
			h.event(id).late = true
		}
		for _, id := range t.Withdrawn {
			h.event(id).taken = t.At
		}
		if len(t.IDs) == 0 {
			return
		}
		if t.Committed == nil {
			open[t.IDs[0]] = t.IDs
			return
		}
		h.decide(t.IDs, *t.Committed, t.At)
		delete(open, t.IDs[0])
	})
	for _, ids := range open {
		for _, id := range ids {
			e := h.event(id)
			h.decide([]uuid.UUID{id}, len(e.moves) > 0, time.Time{})
		}
	}
	return err
}

func (h *history) decide(ids []uuid.UUID, committed bool, at time.Time) {
	for _, id := range ids {
		e := h.event(id)
		e.known, e.committed, e.committedAt = true, committed, at
	}
}

// lines reads a file of JSON lines. The last may be cut: its writer was killed.
func lines[T any](file string, each func(T)) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	reader := bufio.NewReader(f)
	for {
		line, err := reader.ReadBytes('\n')
		if err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		var value T
		if err := json.Unmarshal(bytes.TrimSpace(line), &value); err != nil {
			return fmt.Errorf("%s: %w in line %q", filepath.Base(file), err, line)
		}
		each(value)
	}
}

func valueOf(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return *t
}
