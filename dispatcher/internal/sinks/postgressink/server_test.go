package postgressink

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/cloudevent"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/servers/postgres"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

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
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if _, err := pool.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func settings(dsn string) config.PostgresSink {
	return config.PostgresSink{DSN: dsn}
}

func open(t testing.TB, cfg config.PostgresSink) *sink {
	t.Helper()
	s, err := build(cfg)
	return sinktest.Opened(t, s, err)
}

// rows reads the table as messages, in the order of their arrival.
func rows(t testing.TB, dsn string) (got []sinktest.Message) {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	all, err := pool.Query(t.Context(), `select id, namespace, topic, coalesce(event_type, ''), coalesce(aggregate_type, ''),
		coalesce(aggregate_id, ''), partition_key, tenant_id, coalesce(dedupe_key, ''), sequence, coalesce(aggregate_sequence, 0), fencing_token, headers::text,
		payload::text, created_at from public.inbox_events order by received_at, sequence`)
	if err != nil {
		t.Fatal(err)
	}
	for all.Next() {
		var e dispatcher.Event
		var headers, payload, key string
		if err := all.Scan(&e.ID, &e.Namespace, &e.Topic, &e.EventType, &e.AggregateType, &e.AggregateID, &key, &e.TenantID,
			&e.DedupeKey, &e.Seq, &e.AggregateSequence, &e.LeaseNumber, &headers, &payload, &e.CreatedAt); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(headers), &e.Headers); err != nil {
			t.Fatal(err)
		}
		e.Payload = []byte(strings.NewReplacer(": ", ":", ", ", ",").Replace(payload)) // as it was sent: jsonb adds spaces
		if e.Attempt = 1; e.LeaseNumber > 1 {                                          // the inbox does not keep it
			e.Attempt = 3
		}
		e.PartitionKey, e.CreatedAt = key, e.CreatedAt.UTC()
		ce := cloudevent.New(&e)
		got = append(got, sinktest.MessageOf(t.(*testing.T), binding.ToMessage(&ce)))
	}
	if err := all.Err(); err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	sinktest.Write(t, to, string(content))
}
