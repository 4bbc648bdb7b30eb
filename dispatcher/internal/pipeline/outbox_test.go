package pipeline_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/engine"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const outboxConfig = `
name: shop
namespace: shop
database: {dsnFile: /nowhere}
sink:
  http: {url: %s}
  contentMode: Structured
  routes:
  - topics: [orders, returns]
    to: '"/orders/" + event.headers.region'
  - topics: [refunds, gifts]
    to: '"/refunds"'
message:
  validation:
  - types: [Placed]
    schema: {file: %s}
    rules:
    - rule: payload.total > 0
      message: an order has a total
  transform:
  - payload: mask(without(payload, ["card"]), ["email"])
`

// The engine, the database and a destination: what is invalid is dead with its reason and its details,
// and does not arrive; what is valid arrives where its route leads, without what must not leave; and what
// the payloads hold is in no log, error or record.
//
// CONTRACT: C-29, C-72, C-73
// REQUIREMENT: STORAGE-36, STORAGE-38, STORAGE-39
func TestOutboxDeliversWhatIsValidAndRouted(t *testing.T) {
	target := newTarget(t)
	dir := t.TempDir()
	schemaFile, configFile := filepath.Join(dir, "order.json"), filepath.Join(dir, "config.yaml")
	write(t, schemaFile, `{"required": ["total"], "properties": {"total": {"type": "number"}, "currency": {"enum": ["EUR"]}}, "additionalProperties": {"type": "string"}}`)
	write(t, configFile, fmt.Sprintf(outboxConfig, target.URL, schemaFile))
	cfg, err := config.Load(configFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	s, err := sink.New(cfg, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}()

	pool := pgtest.Pool(t, pgtest.Migrated(t))
	add := func(topic, kind, region, payload string) string {
		id := uuid.Must(uuid.NewV7())
		_, err := pool.Exec(t.Context(), `insert into outbox.outbox_events (id, namespace, topic, event_type, headers, payload)
			values ($1, 'shop', $2, nullif($3, ''), case when $4 = '' then '{}' else jsonb_build_object('region', $4::text) end, $5)`, id, topic, kind, region, payload)
		if err != nil {
			t.Fatal(err)
		}
		return id.String()
	}
	planted := `"card": "4111-PLANTED", "email": "PLANTED@example.com"`
	valid := add("orders", "Placed", "eu", `{"total": 9.50, "currency": "EUR", `+planted+`}`)
	refund := add("refunds", "Refunded", "", `{"id": 9007199254740993, `+planted+`}`)
	wrongType := add("orders", "Placed", "eu", `{"total": "PLANTED", `+planted+`}`)
	wrongEnum := add("orders", "Placed", "eu", `{"total": 1, "currency": "PLANTED"}`)
	wrongName := add("orders", "Placed", "eu", `{"total": 1, "PLANTED": 5}`)
	wrongRule := add("orders", "Placed", "eu", `{"total": -1, `+planted+`}`)
	missing := add("orders", "Placed", "eu", `{`+planted+`}`)
	noRoute := add("strange", "", "", `{`+planted+`}`)
	// Nothing else is of their topics: next to an event that is delivered first, these would be charged.
	noRegion := add("returns", "Shipped", "", `{`+planted+`}`)
	noObject := add("gifts", "", "", `["PLANTED"]`)

	store := pgstore.New(pool, pgstore.Options{Schema: pgtest.Schema, Namespace: "shop", Worker: uuid.New()})
	d, err := engine.New(store, s, dispatcher.Config{MaxAttempts: 5, Logger: slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	if err != nil {
		t.Fatal(err)
	}
	outcome, err := d.RunOnce(t.Context(), 100)
	if err != nil || outcome.Delivered != 2 || outcome.Dead != 5 || outcome.Failed != 1 || outcome.Released < 2 { // what is released may be claimed again
		t.Errorf("%+v, %v", outcome, err)
	}

	rows := collect(t, pool, `select e.id::text, e.status || ':' || coalesce(e.dead_reason, '') || ':' || e.attempts, coalesce(e.last_error, '') || coalesce(d::text, '')
		from outbox.outbox_events e left join outbox.outbox_dead_letters d on d.event_id = e.id`)
	dead := "dead:schema_validation_failed:1"
	for id, want := range map[string][]string{
		valid:     {"delivered::1"},
		refund:    {"delivered::1"},
		wrongType: {dead, "at /total: #/properties/total/type (number, not string)"},
		wrongEnum: {dead, "at /currency: #/properties/currency/enum"},
		wrongName: {dead, "at /*: #/additionalProperties/type (string, not number)"},
		wrongRule: {dead, "message.validation[0].rules[0]: an order has a total (payload.total > 0)"},
		missing:   {dead, "#/required (total)", "cannot be computed"},
		noRoute:   {"pending::1", `topic "strange"`, "no handler for the topic", "add one to sink.routes"},
		noRegion:  {"pending::0", "sink.routes[0].to cannot be computed: line 1, column 27: it reads a key that is not there"},
		noObject:  {"pending::0", "message.transform[0].payload cannot be computed"},
	} {
		row := rows[id]
		if row.state != want[0] {
			t.Errorf("%s is %s, want %s: %s", id, row.state, want[0], row.says)
		}
		for _, part := range want[1:] {
			if !strings.Contains(row.says, part) {
				t.Errorf("%s says %s\nwithout %s", id, row.says, part)
			}
		}
		if strings.Contains(row.says, "PLANTED") {
			t.Errorf("the payload is in what is recorded: %s", row.says)
		}
	}
	if strings.Contains(log.String(), "PLANTED") || !strings.Contains(log.String(), "schema_validation_failed") {
		t.Errorf("the payload is in the log, or nothing is: %s", log.String())
	}
	if strings.Contains(d.Snapshot().LastError, "PLANTED") {
		t.Errorf("the payload is in the status: %s", d.Snapshot().LastError)
	}

	want := []arrival{
		{"/orders/eu", valid, `{"currency":"EUR","email":"***************.com","total":9.50}`},
		{"/refunds", refund, `{"email":"***************.com","id":9007199254740993}`},
	}
	if got := target.arrived(); !slices.Equal(got, want) {
		t.Errorf("arrived\n%v\nwant\n%v", got, want)
	}
	var kept bool
	if err := pool.QueryRow(t.Context(), `select payload->>'card' = '4111-PLANTED' from outbox.outbox_events where id = $1`, valid).Scan(&kept); err != nil || !kept {
		t.Errorf("the row was changed (%v)", err)
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

type row struct{ state, says string }

func collect(t *testing.T, pool *pgxpool.Pool, sql string) map[string]row {
	t.Helper()
	found, err := pool.Query(t.Context(), sql)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]row{}
	var id string
	var r row
	if _, err := pgx.ForEachRow(found, []any{&id, &r.state, &r.says}, func() error { all[id] = r; return nil }); err != nil {
		t.Fatal(err)
	}
	return all
}

// arrival is an event as it arrived.
type arrival struct{ path, id, payload string }

// target is a destination that keeps what arrives.
type target struct {
	*httptest.Server
	mu  sync.Mutex
	all []arrival
}

func newTarget(t *testing.T) *target {
	d := &target{}
	d.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var event struct {
			ID   string
			Data json.RawMessage
		}
		if err := json.NewDecoder(r.Body).Decode(&event); err != nil {
			t.Error(err)
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		d.all = append(d.all, arrival{r.URL.Path, event.ID, string(event.Data)})
	}))
	t.Cleanup(d.Close)
	return d
}

// arrived returns what arrived, by path.
func (d *target) arrived() []arrival {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := slices.Clone(d.all)
	slices.SortFunc(all, func(a, b arrival) int { return strings.Compare(a.path, b.path) })
	return all
}
