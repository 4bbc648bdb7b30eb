package adopt_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations/adopt"
)

// oldService is a service with an outbox of its own.
type oldService struct {
	spec adopt.Spec
	ddl  string
	// produce adds the event of a number, in a transaction.
	produce func(ctx context.Context, tx pgx.Tx, n int) error
	// claim takes rows into the worker's hands, in a transaction: their ids and payloads. complete writes an outcome.
	claim, succeed, fail string
	// together has claim and complete in one transaction.
	together bool
	// aggregates, where a later event of one replaces the one that waits. 0: none does.
	aggregates int
	// stuck takes a row as a worker does that has crashed.
	stuck string
	// open is the condition of rows that are to be sent.
	open string
	// due is the column that says when a row may be sent.
	due string
}

func (o oldService) table() string {
	return map[adopt.Layout]string{adopt.M10: "m10_recovery.outbox", adopt.Overview: "outbox.events", adopt.Storage: "public.storage_outbox"}[o.spec.Layout]
}

// work is one pass of their worker. Each seventh event fails the first time.
func (o oldService) work(ctx context.Context, pool *pgxpool.Pool, l *ledger, pass int) error {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	exec := func(sql string, args ...any) error {
		_, err := conn.Exec(ctx, sql, args...)
		return err
	}
	if o.together {
		if err := exec("begin"); err != nil {
			return err
		}
		defer func() { _ = exec("rollback") }()
	}
	rows, err := conn.Query(ctx, o.claim)
	if err != nil {
		return err
	}
	type row struct{ ID, Payload string }
	claimed, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
	if err != nil {
		return err
	}
	for _, row := range claimed {
		n := number(row.Payload)
		outcome := o.succeed
		if n%7 == 0 && pass%3 != 0 {
			outcome = o.fail
		} else {
			l.do(func() { l.theirs[n]++ })
		}
		if err := exec(outcome, row.ID); err != nil {
			return err
		}
	}
	if o.together {
		return exec("commit")
	}
	return nil
}

// The table of M10's contract, by its schema reference, and its functions, by its rules.
const m10DDL = `
create schema m10_recovery;
create table m10_recovery.outbox (
	id bigserial primary key, aggregate_type text not null, aggregate_id text not null, event_type text not null, payload jsonb not null,
	created_at timestamptz not null default now(), processed_at timestamptz, retry_count integer not null default 0, process_after timestamptz,
	claimed_at timestamptz, claimed_by text
);
create index on m10_recovery.outbox (created_at) where processed_at is null;
create function m10_recovery.claim_outbox_events(p_processor_id text, p_batch_size integer default 10)
returns table (id bigint, aggregate_type text, aggregate_id text, event_type text, payload jsonb, retry_count int)
language sql as $$
	update m10_recovery.outbox as o set claimed_at = now(), claimed_by = p_processor_id
	where o.id in (select id from m10_recovery.outbox
		where processed_at is null and (process_after is null or process_after <= now())
			and (claimed_at is null or claimed_at < now() - interval '5 minutes')
		order by created_at limit p_batch_size for update skip locked)
	returning o.id, o.aggregate_type, o.aggregate_id, o.event_type, o.payload, o.retry_count
$$;
create function m10_recovery.complete_outbox_event(p_event_id bigint, p_processor_id text, p_success boolean, p_error text default null)
returns void language sql as $$
	update m10_recovery.outbox
	set processed_at = case when p_success then now() else processed_at end,
		retry_count = case when p_success then retry_count else retry_count + 1 end,
		process_after = case when p_success then process_after else now() + (power(2, least(retry_count, 10)) || ' seconds')::interval end,
		claimed_at = case when p_success then claimed_at end, claimed_by = case when p_success then claimed_by end
	where id = p_event_id and claimed_by = p_processor_id
$$;`

func m10Service() oldService {
	return oldService{
		spec: adopt.Spec{Layout: adopt.M10, Namespace: "shop", Topic: "m10"},
		ddl: m10DDL + `
create function m10_recovery.publish_outbox(p_aggregate_type text, p_aggregate_id text, p_event_type text, p_payload jsonb)
returns bigint language sql as $$
	insert into m10_recovery.outbox (aggregate_type, aggregate_id, event_type, payload)
	values (p_aggregate_type, p_aggregate_id, p_event_type, p_payload) returning id
$$;`,
		produce: func(ctx context.Context, tx pgx.Tx, n int) error {
			_, err := tx.Exec(ctx, `select m10_recovery.publish_outbox('order', $1, 'OrderPaid', $2)`, fmt.Sprint(n%200), fmt.Sprintf(`{"n": %d}`, n))
			return err
		},
		claim:   `select id::text, payload::text from m10_recovery.claim_outbox_events('old', 25)`,
		succeed: `select m10_recovery.complete_outbox_event($1::text::bigint, 'old', true)`,
		fail:    `select m10_recovery.complete_outbox_event($1::text::bigint, 'old', false, 'refused')`,
		stuck:   `update m10_recovery.outbox set claimed_at = now(), claimed_by = 'crashed' where (payload ->> 'n')::int < 0`,
		open:    `processed_at is null`,
		due:     "process_after",
	}
}

// m10Upsert is the publish_outbox that some schemas have: it replaces the payload of an event that is not processed.
func m10Upsert() oldService {
	o := m10Service()
	o.ddl = m10DDL + `
create unique index uq_outbox_pending on m10_recovery.outbox (aggregate_type, aggregate_id, event_type) where processed_at is null;
create function m10_recovery.publish_outbox(p_aggregate_type text, p_aggregate_id text, p_event_type text, p_payload jsonb)
returns bigint language sql as $$
	insert into m10_recovery.outbox (aggregate_type, aggregate_id, event_type, payload)
	values (p_aggregate_type, p_aggregate_id, p_event_type, p_payload)
	on conflict (aggregate_type, aggregate_id, event_type) where processed_at is null
	do update set payload = excluded.payload, retry_count = m10_recovery.outbox.retry_count + 1
	returning id
$$;`
	o.aggregates, o.together = 200, true
	return o
}

func overviewService() oldService {
	return oldService{
		spec: adopt.Spec{Layout: adopt.Overview, Namespace: "shop"},
		ddl: `
create schema if not exists outbox;
create table outbox.events (
	id uuid primary key, topic text not null, payload jsonb not null, status text not null default 'pending', attempt_count int not null default 0,
	next_attempt_at timestamptz not null default timezone('utc', now()), created_at timestamptz not null default timezone('utc', now())
);
create index on outbox.events (status, next_attempt_at);
create index on outbox.events (topic, status);`,
		produce: func(ctx context.Context, tx pgx.Tx, n int) error {
			_, err := tx.Exec(ctx, `insert into outbox.events (id, topic, payload) values (gen_random_uuid(), 'InboxItemAnalysisReady', $1)`, fmt.Sprintf(`{"n": %d}`, n))
			return err
		},
		claim: `update outbox.events set status = 'processing' where id in (
				select id from outbox.events where status = 'pending' and next_attempt_at <= now() order by next_attempt_at limit 25 for update skip locked)
			returning id::text, payload::text`,
		succeed: `update outbox.events set status = 'processed' where id = $1::text::uuid`,
		fail: `update outbox.events set status = 'pending', attempt_count = attempt_count + 1, next_attempt_at = now() + interval '1 second' * (attempt_count + 1)
			where id = $1::text::uuid`,
		stuck: `update outbox.events set status = 'processing' where (payload ->> 'n')::int < 0`,
		open:  `status in ('pending', 'processing')`,
		due:   "next_attempt_at",
	}
}

// storageService has the document's table, its publish_event_transactionally with get_next_sequence_number, and its
// publisher. Its ids have 32 characters.
func storageService() oldService {
	return oldService{
		spec: adopt.Spec{Layout: adopt.Storage, Namespace: "shop"},
		ddl: `
CREATE TABLE storage_outbox (
	outbox_id VARCHAR(32) PRIMARY KEY, aggregate_id VARCHAR(255) NOT NULL, aggregate_type VARCHAR(50) NOT NULL, event_type VARCHAR(100) NOT NULL,
	event_payload JSONB NOT NULL, event_metadata JSONB NOT NULL DEFAULT '{}', sequence_number BIGINT NOT NULL,
	created_at TIMESTAMP WITH TIME ZONE NOT NULL DEFAULT NOW(), delivery_attempts INTEGER NOT NULL DEFAULT 0,
	delivery_status VARCHAR(20) NOT NULL DEFAULT 'pending', first_attempt_at TIMESTAMP WITH TIME ZONE, last_attempt_at TIMESTAMP WITH TIME ZONE,
	next_retry_at TIMESTAMP WITH TIME ZONE, delivered_at TIMESTAMP WITH TIME ZONE, target_topic VARCHAR(255) NOT NULL, partition_key VARCHAR(255),
	max_attempts INTEGER NOT NULL DEFAULT 5, base_delay_ms INTEGER NOT NULL DEFAULT 1000, max_delay_ms INTEGER NOT NULL DEFAULT 60000,
	backoff_multiplier DECIMAL(3,2) NOT NULL DEFAULT 2.0,
	CONSTRAINT valid_delivery_status CHECK (delivery_status IN ('pending', 'processing', 'delivered', 'failed', 'dlq')),
	CONSTRAINT valid_retry_config CHECK (max_attempts > 0 AND base_delay_ms > 0 AND max_delay_ms >= base_delay_ms)
);
CREATE INDEX idx_outbox_delivery_status ON storage_outbox(delivery_status);
CREATE INDEX idx_outbox_next_retry ON storage_outbox(next_retry_at) WHERE delivery_status IN ('pending', 'failed');
CREATE INDEX idx_outbox_aggregate ON storage_outbox(aggregate_id, aggregate_type, sequence_number);
CREATE INDEX idx_outbox_created_at ON storage_outbox(created_at);
CREATE INDEX idx_outbox_event_type ON storage_outbox(event_type);`,
		produce: func(ctx context.Context, tx pgx.Tx, n int) error {
			aggregate := fmt.Sprint(n % 200)
			var sequence int64
			err := tx.QueryRow(ctx, `SELECT COALESCE(MAX(sequence_number), 0) + 1 as next_seq FROM storage_outbox WHERE aggregate_id = $1 AND aggregate_type = $2`,
				aggregate, "memory").Scan(&sequence)
			if err != nil {
				return err
			}
			_, err = tx.Exec(ctx, `
        INSERT INTO storage_outbox (
            outbox_id, aggregate_id, aggregate_type,
            event_type, event_payload, event_metadata,
            sequence_number, target_topic, partition_key
        ) VALUES ('outbox_' || left(md5($1), 25), $2, $3, $4, $5, $6, $7, $8, $9)`,
				fmt.Sprint(n), aggregate, "memory", "STORAGE_MEMORY_ADDED", fmt.Sprintf(`{"n": %d}`, n), `{"correlation_id": "c-1", "event_version": "1.0.0"}`,
				sequence, "memories", aggregate)
			return err
		},
		claim: `update storage_outbox set delivery_status = 'processing', first_attempt_at = coalesce(first_attempt_at, now()) where outbox_id in (
				SELECT outbox_id FROM storage_outbox
                WHERE delivery_status IN ('pending', 'failed')
                  AND (next_retry_at IS NULL OR next_retry_at <= NOW())
                ORDER BY created_at, sequence_number
                LIMIT 25
                FOR UPDATE SKIP LOCKED)
			returning outbox_id, event_payload::text`,
		succeed: `update storage_outbox set delivery_status = 'delivered', delivered_at = now() where outbox_id = $1`,
		fail: `update storage_outbox set delivery_status = 'failed', delivery_attempts = least(delivery_attempts + 1, max_attempts - 1), next_retry_at = now() + interval '1 second'
			where outbox_id = $1`,
		stuck: `update storage_outbox set delivery_status = 'processing' where (event_payload ->> 'n')::int < 0`,
		open:  `delivery_status in ('pending', 'processing', 'failed')`,
		due:   "next_retry_at",
	}
}

// Producers write on, at some 500 events a second, while a service's outbox is adopted, cut over and given back. Each
// event that was committed is delivered, none that was rolled back, none is added twice, and both sides deliver only what
// their worker had in its hands at the cut-over.
//
// CONTRACT: C-91
func TestEachEventSentByOneSide(t *testing.T) {
	t.Parallel()
	for name, old := range map[string]func() oldService{
		"m10": m10Service, "m10 upsert": m10Upsert, "overview": overviewService, "storage": storageService,
	} {
		t.Run(name, func(t *testing.T) { newRig(t, old()).playLedger() })
	}
}

func (r rig) playLedger() {
	l := newLedger()
	for n := -5; n < 0; n++ { // a worker crashed with these
		r.produce(r.Context(), n)
		l.committed[n] = true
	}
	r.exec(r.old.stuck)
	p := producers{rig: r, ledger: l}
	stopWorker := r.work(l, 0)
	wait := p.start(2400)

	p.reach(200)
	r.step(adopt.ToShadow, adopt.Shadow, true)
	r.step(adopt.ToShadow, adopt.Shadow, false)
	p.reach(800)
	s := r.status()
	need.That(r, s.OK() && s.Rows != 0 && s.Rows == s.Notes && s.Refused == 0 && s.State == adopt.Shadow, "in the shadow: %+v", s)
	pgtest.Want(r, 0, "%d events in the shadow", `select count(*) from outbox.outbox_events`)
	moved := r.step(adopt.Cutover, adopt.Live, true)
	stopDispatcher := r.dispatch(l)
	p.reach(1400)
	stopWorker()
	r.step(adopt.Cutover, adopt.Live, false)
	wait()
	r.deliverAll()
	s = r.status()
	need.That(r, s.OK() && s.Rows == s.Notes && s.Refused == 0 && s.State == adopt.Live && s.OpenEvents == 0, "after the cut-over: %+v", s)
	r.check(l)
	stopDispatcher()
	theirs, ours := len(l.theirs), len(l.ours)

	// No worker delivers until the way back; their worker delivers the rest.
	wait = p.start(600)
	p.reach(2400)
	returned := r.step(adopt.Back, adopt.None, true)
	stopWorker = r.work(l, 0)
	wait()
	r.eventually("their worker has delivered the rest", func() bool {
		r.exec(fmt.Sprintf(`update %[1]s set %[2]s = now() where %[2]s > now() and %[3]s`, r.old.table(), r.old.due, r.old.open))
		return pgtest.Value[int](r, `select count(*) from `+r.old.table()+` where `+r.old.open) == 0
	})
	stopWorker()
	r.check(l)
	r.step(adopt.Back, adopt.None, false)
	need.Want(r, 0, "%d things are left after the way back", pgtest.Value[int](r, `select count(*) from outbox.outbox_events where live`)+pgtest.Value[int](r, `select count(*) from outbox.outbox_adopted`)+
		pgtest.Value[int](r, `select count(*) from pg_trigger where tgname like 'outbox\_adopt%'`)+pgtest.Value[int](r, `select count(*) from pg_proc where proname like 'outbox\_adopt\_'||$1`, r.old.spec.Layout))
	r.Logf("committed %d, rolled back %d; moved %d, returned %d; delivered by theirs %d, ours %d at the end of the cut-over, %d and %d in all",
		len(l.committed), len(l.rolledBack), moved.Moved, returned.Returned, theirs, ours, len(l.theirs), len(l.ours))
	need.That(r, moved.Moved >= 5 && returned.Returned != 0 && ours != 0 && theirs != 0, "one side had nothing to do")
}

// deliverAll waits until the dispatcher has delivered all, of which some is due later.
func (r rig) deliverAll() {
	r.Helper()
	r.eventually("the dispatcher has delivered all", func() bool {
		r.exec(`update outbox.outbox_events set next_attempt_at = now() where live and status = 'pending' and next_attempt_at > now()`)
		return pgtest.Value[int](r, `select count(*) from outbox.outbox_events where live`) == 0
	})
}

// check holds deliveries against what was committed.
func (r rig) check(l *ledger) {
	r.Helper()
	l.Lock()
	defer l.Unlock()
	// A later event of an aggregate may have replaced an earlier one.
	last := map[int]int{}
	for n := range l.committed {
		key := n
		if r.old.aggregates > 0 {
			key = n % r.old.aggregates
		}
		if m, ok := last[key]; !ok || m < n {
			last[key] = n
		}
	}
	both := 0
	for _, n := range last {
		need.That(r, l.theirs[n]+l.ours[n] != 0, "event %d is lost", n)
	}
	for n := range l.committed {
		need.That(r, l.ours[n] <= 1 && l.theirs[n] <= 1, "event %d was delivered %d times by theirs and %d by ours", n, l.theirs[n], l.ours[n])
		if l.ours[n] > 0 && l.theirs[n] > 0 {
			both++
		}
	}
	most := map[bool]int{false: 25, true: 0}[r.old.together]
	need.That(r, both <= most, "%d events were delivered by both, want at most %d, which their worker had in its hands", both, most)
	for n := range l.rolledBack {
		need.That(r, l.theirs[n]+l.ours[n] == 0, "event %d was rolled back, and delivered", n)
	}
	pgtest.Want(r, 0, "%d events were added twice", `select count(*) from (select from outbox.outbox_events group by payload having count(*) > 1) as twice`)
}

// producers are four connections.
type producers struct {
	rig
	*ledger
	next, commits atomic.Int64
}

// reach waits until n events are committed.
func (p *producers) reach(n int64) {
	p.Helper()
	p.eventually(fmt.Sprint(n, " commits"), func() bool { return p.commits.Load() >= n })
}

// start produces n more events, each tenth of which is rolled back, and returns what waits for the end. A connection has
// aggregates of its own. Each fourth transaction has a snapshot from before it writes.
func (p *producers) start(n int64) (wait func()) {
	var group sync.WaitGroup
	first := p.next.Load()
	for k := range int64(4) {
		group.Go(func() {
			rate := time.NewTicker(8 * time.Millisecond)
			defer rate.Stop()
			for i := first + k; i < first+n && p.Context().Err() == nil; i += 4 {
				p.one(int(i))
				<-rate.C
			}
		})
	}
	p.next.Add(n)
	p.Cleanup(group.Wait)
	return group.Wait
}

func (p *producers) one(n int) {
	ctx := context.WithoutCancel(p.Context())
	level := pgx.ReadCommitted
	if n%16 < 4 && p.old.aggregates == 0 {
		level = pgx.RepeatableRead
	}
	tx, err := p.BeginTx(ctx, pgx.TxOptions{IsoLevel: level})
	if err != nil {
		p.Errorf("a producer got %v", err)
		return
	}
	defer func() { _ = tx.Rollback(ctx) }() // nothing after a commit
	_, err = tx.Exec(ctx, `select 1`)
	if err == nil {
		err = p.old.produce(ctx, tx, n)
	}
	if err == nil && n%10 == 3 {
		p.do(func() { p.rolledBack[n] = true })
		err = tx.Rollback(ctx)
	} else if err == nil {
		if err = tx.Commit(ctx); err == nil {
			p.do(func() { p.committed[n] = true })
			p.commits.Add(1)
		}
	}
	need.Want(p, nil, "a producer got %v", err)
}
