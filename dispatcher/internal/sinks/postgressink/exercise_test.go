package postgressink

import (
	"context"
	"encoding/json"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/cloudevent"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/outboxtest"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/servers/postgres"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// CONTRACT: C-32, C-70, C-71, C-73
func TestPostgresSinkMeetsTheSinkContract(t *testing.T) {
	srv, dsn := server(t)
	sinktest.Exercise(t, func(t *testing.T) sinktest.Destination { return destination(t, srv, settings(dsn)) })
}

// CONTRACT: C-27, C-31, C-32
func TestPostgresSinkSurvivesServerFaults(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux lists the children of a process")
	}
	srv, dsn := server(t)
	sinktest.Faults{
		Server: process{srv, t},
		Open: func(t *testing.T, timeout time.Duration) sinktest.Destination {
			cfg := settings(dsn)
			cfg.Timeout = spec.Duration(timeout)
			return destination(t, srv, cfg)
		},
		Transaction: true,
		Unconfirmed: "no response within %s; see what the statement waits for", Unconnected: "no response in time",
	}.Run(t)
}

// process is a server as sinktest.Faults drives it.
type process struct {
	*postgres.Server
	t *testing.T
}

func (p process) Pause() {
	need.OK(p.t, p.Freeze())
}

func (p process) Resume() { p.Thaw() }

// destination is the table of a server as sinktest.Exercise drives it.
func destination(t *testing.T, srv *postgres.Server, cfg spec.PostgresSink) sinktest.Destination {
	dsn := cfg.DSN
	var start func()
	exec(t, dsn, `truncate inbox_events; drop table if exists refused; create table refused (id uuid);
			create or replace function refuse() returns trigger language plpgsql as $$ begin
				if exists (select from refused where id = new.id) then raise 'not this one: %', new.payload; end if;
				return new;
			end $$;
			create or replace trigger refuse before insert on inbox_events for each row execute function refuse()`)
	return sinktest.Destination{
		Sink:    open(t, cfg),
		Arrived: func() []sinktest.Message { return rows(t, dsn) },
		Refuse:  func(id uuid.UUID) { exec(t, dsn, `insert into refused values ('`+id.String()+`')`) },
		Refused: dispatcher.Cause{Class: "postgres", Code: "P0001"},
		Stop:    func() { start = sinktest.Kill(t, process{srv, t}) },
		Start:   func() { start() },
		Hang:    func() <-chan struct{} { return locked(t, dsn) },
		// The pool pings a connection that was idle for a second.
		Idle: func() {
			exec(t, dsn, `select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'outbox-dispatcher/inbox'; select pg_sleep(1.2)`)
		},
		Remedy: "table public.inbox_events: relation \"public.inbox_events\" does not exist (SQLSTATE 42P01); create it",
		Missing: func() func() {
			exec(t, dsn, `alter table inbox_events rename to elsewhere`)
			return func() { exec(t, dsn, `alter table elsewhere rename to inbox_events`) }
		},
	}
}

// locked locks the table, and signals when a statement waits for it.
func locked(t *testing.T, dsn string) <-chan struct{} {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	need.OK(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	tx, err := conn.Begin(t.Context())
	if err == nil {
		_, err = tx.Exec(t.Context(), `lock table inbox_events in access exclusive mode`)
	}
	need.OK(t, err)
	waiting := make(chan struct{}, 1)
	go func() {
		for n := 0; n == 0; {
			err := conn.QueryRow(t.Context(), `select count(*) from pg_locks where relation = 'inbox_events'::regclass and not granted`).Scan(&n)
			if err != nil {
				return // the test has ended
			}
		}
		waiting <- struct{}{}
	}()
	return waiting
}

// An outbox arrives whole, in the order of its keys,
// and nothing of it twice, though the server is killed half-way.
//
// CONTRACT: C-50, C-70, C-71
func TestNothingIsLostOrDoubled(t *testing.T) {
	events := outboxtest.Events(t, 20_000)
	srv, dsn := server(t)
	// A table that takes an event twice would show it: every insert is counted, also those that are undone
	// by the primary key alone.
	exec(t, dsn, `create table arrivals (id uuid);
		create function note() returns trigger language plpgsql as $$ begin insert into arrivals values (new.id); return null; end $$;
		create trigger note after insert on inbox_events for each row execute function note()`)
	outboxtest.Deliver(t, outboxtest.Run{
		Sink: open(t, settings(dsn)), Events: events, Keys: events / 100,
		Server:  process{srv, t},
		Arrived: func() []sinktest.Message { return rows(t, dsn) },
	})
	conn, err := pgx.Connect(t.Context(), dsn)
	need.OK(t, err)
	defer conn.Close(t.Context())
	var all, distinct int
	need.OK(t, conn.QueryRow(t.Context(), `select count(*), count(distinct id) from arrivals`).Scan(&all, &distinct))
	need.That(t, all == events && distinct == events, "%d inserts of %d events, want %d of each", all, distinct, events)
}

// An event that is there already is delivered, and its row stays as it was.
//
// CONTRACT: C-70
func TestSecondDeliveryChangesNothing(t *testing.T) {
	dsn := inbox(t)
	s := open(t, settings(dsn))
	batch := newEvents(10)
	for range 2 {
		for _, err := range s.Deliver(t.Context(), batch) {
			if err != nil {
				t.Error(err)
			}
		}
		for _, e := range batch {
			e.LeaseNumber++
		}
	}
	all := rows(t, dsn)
	need.Want(t, 10, "%d rows are there, want 10", len(all))
	for _, m := range all {
		need.That(t, m.Attributes["fencingtoken"] == "0000000000000000001", "a second delivery changed the row: %v", m.Attributes)
	}
}

func TestRoutesDoNotApply(t *testing.T) {
	route := func(*dispatcher.Event) (string, error) { return "elsewhere", nil }
	if _, err := New(settings("postgres://localhost/x"), route); err == nil || !strings.Contains(err.Error(), "; ") && !strings.Contains(err.Error(), "remove them") {
		t.Errorf("a route is taken: %v", err)
	}
}

// What the page says about the table is what the tests make.
func TestTableIsDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../../sink/postgres.md")
	need.OK(t, err)
	for line := range strings.Lines(Table) {
		need.That(t, strings.Contains(string(doc), "    "+line), "postgres.md does not have the line %q of inbox.sql", line)
	}
}

// Events arrive however the driver sends the statement: as is set for PgBouncer before 1.21, too.
func TestEveryModeOfTheDriverDelivers(t *testing.T) {
	dsn := inbox(t)
	n := 0
	pgtest.EachMode(t, func(t *testing.T, mode pgtest.Mode) {
		n += 2
		batch := newEvents(2)
		batch[1].TenantID = uuid.NullUUID{UUID: uuid.New(), Valid: true}
		for _, err := range open(t, settings(mode.In(dsn))).Deliver(t.Context(), batch) {
			if err != nil {
				t.Error(err)
			}
		}
		need.Want(t, n, "%d rows, want %d", len(rows(t, dsn)))
	})
}

func TestMain(m *testing.M) { pgtest.Main(m) }

// inbox makes a database with the documented table, and returns its connection string.
func inbox(t testing.TB) string {
	t.Helper()
	dsn := pgtest.Empty(t)
	exec(t, dsn, Table)
	return dsn
}

// server starts a server with the table, for this test alone.
func server(t testing.TB) (*postgres.Server, string) {
	t.Helper()
	srv := pgtest.Server(t)
	dsn := srv.DSN("postgres")
	exec(t, dsn, Table)
	return srv, dsn
}

func exec(t testing.TB, dsn, sql string) {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), dsn)
	need.OK(t, err)
	defer pool.Close()
	if _, err := pool.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func settings(dsn string) spec.PostgresSink {
	return spec.PostgresSink{DSN: dsn}
}

func open(t testing.TB, cfg spec.PostgresSink) *sink {
	t.Helper()
	s, err := build(cfg)
	return sinktest.Opened(t, s, err)
}

// rows reads the table as messages, in the order of their arrival.
func rows(t testing.TB, dsn string) (got []sinktest.Message) {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), dsn)
	need.OK(t, err)
	defer pool.Close()
	all, err := pool.Query(t.Context(), `select id, namespace, topic, coalesce(event_type, ''), coalesce(aggregate_type, ''),
		coalesce(aggregate_id, ''), partition_key, tenant_id, coalesce(dedupe_key, ''), sequence, coalesce(aggregate_sequence, 0), fencing_token, headers::text,
		payload::text, created_at from public.inbox_events order by received_at, sequence`)
	need.OK(t, err)
	for all.Next() {
		var e dispatcher.Event
		var headers, payload, key string
		need.OK(t, all.Scan(&e.ID, &e.Namespace, &e.Topic, &e.EventType, &e.AggregateType, &e.AggregateID, &key, &e.TenantID,
			&e.DedupeKey, &e.Seq, &e.AggregateSequence, &e.LeaseNumber, &headers, &payload, &e.CreatedAt))
		need.OK(t, json.Unmarshal([]byte(headers), &e.Headers))
		e.Payload = []byte(strings.NewReplacer(": ", ":", ", ", ",").Replace(payload)) // as it was sent: jsonb adds spaces
		if e.Attempt = 1; e.LeaseNumber > 1 {                                          // the inbox does not keep it
			e.Attempt = 3
		}
		e.PartitionKey, e.CreatedAt = key, e.CreatedAt.UTC()
		ce := cloudevent.New(&e)
		got = append(got, sinktest.MessageOf(t.(*testing.T), binding.ToMessage(&ce)))
	}
	need.OK(t, all.Err())
	return got
}

// newEvents returns events of a first lease, numbered from 1.
func newEvents(n int) []*dispatcher.Event {
	batch := sinktest.NewEvents(n)
	for i, e := range batch {
		e.Seq, e.LeaseNumber = int64(i+1), 1
	}
	return batch
}

func copyFile(t testing.TB, from, to string) {
	t.Helper()
	content, err := os.ReadFile(from)
	need.OK(t, err)
	sinktest.Write(t, to, string(content))
}
