package engine

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// memory is a Store in memory, for tests in virtual time: what takes hours of the database's clock is done at
// once. It keeps the rules of package storetest that these tests need; of order per key, how many rows a key gets.
type memory struct {
	// claim and nack, when set, are called first with the number of rows that are requested, and may take
	// their time or fail.
	claim, nack func(ctx context.Context, rows int) error
	extend      func(ctx context.Context) error
	payload     int      // bytes of a payload, made again for each claim
	overRate    []string // when set, the tenants of these topics have used their rates, and no row is claimed

	mu    sync.Mutex
	rows  map[uuid.UUID]*memoryRow
	order []*memoryRow
	live  map[string][]*memoryRow // of each topic, in order: a claim looks at these alone
	names []string                // of the topics, in the order of their first event
	lease int64
}

type memoryRow struct {
	event       dispatcher.Event
	status      string
	due, locked time.Time
}

func newMemory() *memory {
	return &memory{rows: map[uuid.UUID]*memoryRow{}, live: map[string][]*memoryRow{}}
}

// enqueue adds n events.
func (m *memory) enqueue(topic string, n int) { m.enqueueOf(uuid.NullUUID{}, topic, n) }

// enqueueOf adds n events of a tenant.
func (m *memory) enqueueOf(tenant uuid.NullUUID, topic string, n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.live[topic]; !ok {
		m.names = append(m.names, topic)
	}
	for range n {
		e := dispatcher.Event{TenantID: tenant, ID: uuid.Must(uuid.NewV7()), Seq: int64(len(m.order) + 1), Topic: topic, Headers: noHeaders, CreatedAt: time.Now()}
		r := &memoryRow{event: e, status: "pending", due: time.Now()}
		m.rows[e.ID] = r
		m.order = append(m.order, r)
		m.live[topic] = append(m.live[topic], r)
	}
}

// unfinished are the rows of a topic that are neither delivered nor dead, in order.
func (m *memory) unfinished(topic string) []*memoryRow {
	m.live[topic] = slices.DeleteFunc(m.live[topic], func(r *memoryRow) bool { return r.status == "delivered" || r.status == "dead" })
	return m.live[topic]
}

var noHeaders = map[string]string{}

// count returns how many rows of a topic have a status.
func (m *memory) count(topic, status string) (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.order {
		if r.event.Topic == topic && r.status == status {
			n++
		}
	}
	return n
}

// attempts is the sum of what the rows of a topic have spent.
func (m *memory) attempts(topic string) (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.order {
		if r.event.Topic == topic {
			n += r.event.Attempt
		}
	}
	return n
}

func (m *memory) Claim(ctx context.Context, req dispatcher.ClaimRequest) (out dispatcher.Claimed, err error) {
	total := 0
	for _, s := range req.Shares {
		total += s.Limit
	}
	if m.claim != nil {
		if err := m.claim(ctx, total); err != nil {
			return out, err
		}
	}
	if m.overRate != nil {
		return dispatcher.Claimed{OverRate: m.overRate}, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	out.At = now
	m.lease++
	var bytes int64
	for _, share := range req.Shares {
		var due []*memoryRow
		ofKey := map[string]int{}
		for _, r := range m.unfinished(share.Topic) {
			if key := r.event.PartitionKey; req.Keys != nil && key != "" {
				if ofKey[key]++; ofKey[key] > req.Keys.PerKey {
					continue
				}
			}
			free := r.status == "pending" || r.locked.Before(now)
			if free && !r.due.After(now) && !slices.Contains(share.Except, r.event.TenantID.UUID) {
				due = append(due, r)
			}
		}
		slices.SortStableFunc(due, func(a, b *memoryRow) int { return a.due.Compare(b.due) })
		if req.Fair {
			turns, n := map[*memoryRow]int{}, map[uuid.UUID]int{}
			for _, r := range due {
				n[r.event.TenantID.UUID]++
				turns[r] = n[r.event.TenantID.UUID]
			}
			slices.SortStableFunc(due, func(a, b *memoryRow) int { return turns[a] - turns[b] })
		}
		for _, r := range due[:min(len(due), share.Limit)] {
			over := r.status == "processing"
			if !over && r.event.Attempt >= cmp.Or(r.event.MaxAttempts, req.MaxAttempts) || over && r.event.Suspicion >= 5 {
				r.status = "dead"
				out.Dead = append(out.Dead, dispatcher.DeadEvent{ID: r.event.ID, Topic: r.event.Topic, Attempts: r.event.Attempt, Reason: dispatcher.ReasonProcessingTimeout})
				continue
			}
			if bytes += int64(m.payload); bytes > int64(m.payload) && req.MaxBytes > 0 && bytes > req.MaxBytes {
				return out, nil
			}
			r.status, r.locked = "processing", now.Add(req.Lease)
			if r.event.Suspicion = max(r.event.Suspicion, 1); !over {
				r.event.Suspicion = 0
				r.event.Attempt++
			}
			r.event.LeaseNumber = m.lease
			e := r.event
			e.Payload = make([]byte, m.payload)
			out.Events = append(out.Events, &e)
		}
	}
	return out, nil
}

// held writes back the rows that are held under their leases.
func (m *memory) held(leases []dispatcher.Lease, write func(i int, r *memoryRow)) (lost []dispatcher.Lease) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, l := range leases {
		if r := m.rows[l.ID]; r == nil || r.status != "processing" || r.event.LeaseNumber != l.Number {
			lost = append(lost, l)
		} else {
			write(i, r)
		}
	}
	return lost
}

func (m *memory) Ack(_ context.Context, leases []dispatcher.Lease) ([]dispatcher.Lease, error) {
	return m.held(leases, func(_ int, r *memoryRow) { r.status = "delivered" }), nil
}

func (m *memory) Nack(ctx context.Context, failures []dispatcher.Failure) ([]dispatcher.Lease, error) {
	if m.nack != nil {
		if err := m.nack(ctx, len(failures)); err != nil {
			return nil, err
		}
	}
	leases := make([]dispatcher.Lease, len(failures))
	for i, f := range failures {
		leases[i] = f.Lease
	}
	lost := m.held(leases, func(i int, r *memoryRow) {
		r.status, r.due = "pending", time.Now().Add(failures[i].Delay)
		if failures[i].Reason != "" {
			r.status = "dead"
		}
	})
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.DeleteFunc(lost, func(l dispatcher.Lease) bool { // an earlier try made it dead
		r := m.rows[l.ID]
		return r.status == "dead" && r.event.LeaseNumber == l.Number
	}), nil
}

func (m *memory) Release(_ context.Context, returns []dispatcher.Return) ([]dispatcher.Lease, error) {
	leases := make([]dispatcher.Lease, len(returns))
	for i, r := range returns {
		leases[i] = r.Lease
	}
	return m.held(leases, func(i int, r *memoryRow) {
		r.status = "pending"
		r.event.Attempt--
		if returns[i].Delay > 0 {
			r.due = time.Now().Add(returns[i].Delay)
		}
		if returns[i].Error != "" && r.event.FaultSince.IsZero() {
			r.event.FaultSince = time.Now()
		}
	}), nil
}

func (m *memory) Extend(ctx context.Context, leases []dispatcher.Lease, lease time.Duration) ([]dispatcher.Lease, error) {
	if m.extend != nil {
		if err := m.extend(ctx); err != nil {
			return nil, err
		}
	}
	return m.held(leases, func(_ int, r *memoryRow) { r.locked = time.Now().Add(lease) }), nil
}

func (m *memory) Begin(_ context.Context, leases []dispatcher.Lease) ([]dispatcher.Lease, error) {
	return m.held(leases, func(_ int, r *memoryRow) { r.event.Suspicion++ }), nil
}

func (m *memory) Topics(context.Context) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(m.names), func(topic string) bool { return len(m.unfinished(topic)) == 0 }), nil
}

func (m *memory) Depth(context.Context, []string) (dispatcher.Depth, error) {
	return dispatcher.Depth{}, nil
}

func (m *memory) Schema(context.Context) (dispatcher.Schema, error) {
	return dispatcher.Schema{State: dispatcher.SchemaReady}, nil
}

// stubSink is a Sink whose results a function returns.
type stubSink struct {
	deliver func(ctx context.Context, e *dispatcher.Event) error
	probe   func(ctx context.Context) error
	batch   int
}

func (s *stubSink) Deliver(ctx context.Context, batch []*dispatcher.Event) []error {
	errs := make([]error, len(batch))
	for i, e := range batch {
		errs[i] = s.deliver(ctx, e)
	}
	return errs
}

func (s *stubSink) Probe(ctx context.Context) error {
	if s.probe == nil {
		return nil
	}
	return s.probe(ctx)
}

func (s *stubSink) BatchSize() int            { return max(1, s.batch) }
func (*stubSink) Close(context.Context) error { return nil }

// begin runs a dispatcher until stop is called or the test ends.
func begin(t *testing.T, store dispatcher.Store, sink dispatcher.Sink, cfg dispatcher.Config) (d *Dispatcher, stop func()) {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	d, err := New(store, sink, cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := d.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	stop = sync.OnceFunc(func() { cancel(); <-ended })
	t.Cleanup(stop)
	return d, stop
}

// passes lets virtual time pass until the condition holds, and returns how long that took: at most limit.
func passes(t *testing.T, limit time.Duration, what string, holds func() bool) time.Duration {
	t.Helper()
	began := time.Now()
	for !holds() {
		if time.Since(began) > limit {
			t.Fatalf("not within %v: %s", limit, what)
		}
		<-time.After(min(limit/1000, time.Second))
	}
	return time.Since(began)
}
