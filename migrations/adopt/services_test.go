package adopt_test

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

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
	id             bigserial   primary key,
	aggregate_type text        not null,
	aggregate_id   text        not null,
	event_type     text        not null,
	payload        jsonb       not null,
	created_at     timestamptz not null default now(),
	processed_at   timestamptz,
	retry_count    integer     not null default 0,
	process_after  timestamptz,
	claimed_at     timestamptz,
	claimed_by     text
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
	id uuid primary key,
	topic text not null,
	payload jsonb not null,
	status text not null default 'pending',
	attempt_count int not null default 0,
	next_attempt_at timestamptz not null default timezone('utc', now()),
	created_at timestamptz not null default timezone('utc', now())
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
