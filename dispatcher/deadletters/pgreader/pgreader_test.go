package pgreader

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters"
	"github.com/outbox-operator/outbox-operator/hack/testing/golden"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const tenant = "7f3a9c21-0000-4000-8000-00000000000a"

// eventID is the id of the event with the number n.
func eventID(n int) string { return fmt.Sprintf("0190a5c8-5d1e-7000-8000-%012d", n) }

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// outbox is a database with a reader of the namespace shop.
func outbox(t testing.TB, topics ...string) (pgtest.DB, *Reader) {
	t.Helper()
	dsn := pgtest.Migrated(t)
	connect := func(ctx context.Context) (*pgx.Conn, error) { return pgx.Connect(ctx, dsn) }
	return pgtest.Open(t, dsn), New(connect, Options{Namespace: "shop", Topics: topics})
}

const failure = `[{"at": "2026-03-01T12:00:00+01:00", "attempt": 20, "class": "http", "code": "422", "place": "/items/*/price", "error": "the consumer responded 422"}]`

// story is an outbox with six dead letters of five events: 1 and 2 of one group, 3 of another topic, 4 that was dead twice, 5
// of another namespace. Event 6 is pending.
func story(t testing.TB, pool pgtest.DB) {
	t.Helper()
	for n := 1; n <= 6; n++ {
		namespace, topic := "shop", "orders"
		if n == 3 {
			topic = "bills"
		}
		if n == 5 {
			namespace = "bank"
		}
		pgtest.Exec(pool, `insert into outbox.outbox_events (id, namespace, topic, event_type, aggregate_type, aggregate_id, dedupe_key, tenant_id, payload,
				headers, status, dead_reason, attempts, lease, last_error, failures, created_at, updated_at, next_attempt_at)
			values ($1, $2, $3, 'OrderPlaced', 'order', $4::integer::text, 'key-' || $4::integer, $5, '{"card": "s3cr3t"}', '{"trace": "s3cr3t"}',
				case when $4::integer < 6 then 'dead' else 'pending' end, case when $4::integer < 6 then 'permanent_failure' end, 20, 7,
				'the consumer responded 422', $6, $7, $7, $7)`, eventID(n), namespace, topic, n, tenant, failure, noon.Add(-time.Hour))
	}
	deadLetter := `insert into outbox.outbox_dead_letters (event_id, namespace, topic, seq, event_type, aggregate_type, aggregate_id, tenant_id, reason,
			class, code, place, attempts, dead_at, worker, error, failures, response, resolution, resolved_at, resolved_by, resolution_reason)
		values ($1, $2, $3, $4::integer, 'OrderPlaced', 'order', $4::integer::text, $5, $6, 'http', '422', '/items/*/price', 20, $7, $5,
			'the Consumer responded 422', $8, 'no such item', $9, $10, $11, $12)`
	add := func(n int, namespace, topic, reason string, dead time.Time, resolution ...any) {
		if resolution == nil {
			resolution = []any{nil, nil, nil, nil}
		}
		pgtest.Exec(pool, deadLetter, append([]any{eventID(n), namespace, topic, n, tenant, reason, dead, failure}, resolution...)...)
	}
	add(4, "shop", "orders", "permanent_failure", noon.Add(-time.Hour), "replayed", noon.Add(-30*time.Minute), "ada", "CHG-812")
	add(1, "shop", "orders", "permanent_failure", noon)
	add(2, "shop", "orders", "permanent_failure", noon.Add(time.Minute))
	add(3, "shop", "bills", "permanent_failure", noon.Add(2*time.Minute))
	add(4, "shop", "orders", "max_retries_exceeded", noon.Add(3*time.Minute))
	add(5, "bank", "orders", "permanent_failure", noon.Add(4*time.Minute))
}

// numbers of the events of dead letters.
func numbers(t testing.TB, p deadletters.Page, err error) string {
	t.Helper()
	need.OK(t, err)
	out := []string{}
	for _, l := range p.DeadLetters {
		out = append(out, strings.TrimLeft(l.Event[len(l.Event)-12:], "0"))
	}
	return strings.Join(out, " ")
}

// Each member of a filter chooses dead letters. CONTRACT: C-41
func TestFilterMembersChooseDeadLetters(t *testing.T) {
	t.Parallel()
	pool, r := outbox(t)
	story(t, pool)
	for name, c := range map[string]struct {
		filter deadletters.Filter
		want   string
	}{
		"open":              {deadletters.Filter{}, "4 3 2 1"},
		"resolved":          {deadletters.Filter{Resolved: true}, "4"},
		"an event":          {deadletters.Filter{IDs: []string{eventID(2), eventID(5)}}, "2"},
		"a dead letter":     {deadletters.Filter{IDs: []string{"4", eventID(1)}}, "3 1"},
		"a topic":           {deadletters.Filter{Topic: "bills"}, "3"},
		"a type":            {deadletters.Filter{Type: "OrderPlaced"}, "4 3 2 1"},
		"another type":      {deadletters.Filter{Type: "Orderplaced"}, ""},
		"an aggregate":      {deadletters.Filter{Aggregate: "2"}, "2"},
		"an aggregate's id": {deadletters.Filter{Aggregate: "order/3"}, "3"},
		"no aggregate":      {deadletters.Filter{Aggregate: "order"}, ""},
		"a tenant":          {deadletters.Filter{Tenant: tenant}, "4 3 2 1"},
		"another tenant":    {deadletters.Filter{Tenant: eventID(1)}, ""},
		"a reason":          {deadletters.Filter{Reason: string(dispatcher.ReasonMaxRetriesExceeded)}, "4"},
		"a group": {deadletters.Filter{Group: dispatcher.Fingerprint("orders", dispatcher.ReasonPermanentFailure,
			dispatcher.Cause{Class: "http", Code: "422", Place: "/items/*/price"})}, "2 1"},
		"an error":       {deadletters.Filter{ErrorContains: "consumer RESPONDED"}, "4 3 2 1"},
		"no pattern":     {deadletters.Filter{ErrorContains: "consumer%"}, ""},
		"since":          {deadletters.Filter{Since: noon.Add(time.Minute)}, "4 3 2"},
		"until":          {deadletters.Filter{Until: noon.Add(time.Minute)}, "1"},
		"a topic and id": {deadletters.Filter{Topic: "bills", IDs: []string{eventID(1)}}, ""},
	} {
		page, err := r.List(t.Context(), deadletters.ListRequest{Filter: c.filter})
		need.Want(t, c.want, "%s: events %q, want %q", numbers(t, page, err), name)
		if c.filter.Resolved {
			continue
		}
		groups, err := r.Groups(t.Context(), c.filter)
		need.OK(t, err)
		n := 0
		for _, g := range groups.Groups {
			n += int(g.Count)
		}
		need.That(t, n == len(strings.Fields(c.want)), "%s: %d in groups, want %q: %+v", name, n, c.want, groups)
	}
	_, err := r.List(t.Context(), deadletters.ListRequest{Filter: deadletters.Filter{Group: "2"}})
	need.That(t, errors.Is(err, deadletters.ErrInvalidRequest), "a wrong filter: %v", err)
	if _, err := r.Groups(t.Context(), deadletters.Filter{Resolved: true}); !errors.Is(err, deadletters.ErrInvalidRequest) {
		t.Errorf("groups of resolved dead letters: %v", err)
	}
}

// A reader with topics sees only these.
func TestReaderSeesOnlyItsTopics(t *testing.T) {
	t.Parallel()
	pool, r := outbox(t, "bills")
	story(t, pool)
	page, err := r.List(t.Context(), deadletters.ListRequest{})
	need.Want(t, "3", "events %q, want 3", numbers(t, page, err))
	groups, err := r.Groups(t.Context(), deadletters.Filter{})
	need.That(t, err == nil && len(groups.Groups) == 1 && groups.Groups[0].Topic == "bills", "%+v, %v", groups, err)
	for _, id := range []string{eventID(1), "2", "key-1"} {
		_, err := r.Show(t.Context(), id, true)
		if id == "key-1" {
			_, err = r.Event(t.Context(), id, true)
		}
		need.That(t, errors.Is(err, deadletters.ErrNotFound), "%s of another topic: %v", id, err)
	}
	if _, err := r.Event(t.Context(), eventID(1), false); !errors.Is(err, deadletters.ErrNotFound) || !strings.Contains(err.Error(), `the namespace shop and the topics ["bills"]`) {
		t.Errorf("an event of another topic: %v", err)
	}
}

// Pages have each dead letter once, whatever becomes dead between them.
func TestPagesHaveEachDeadLetterOnce(t *testing.T) {
	t.Parallel()
	pool, r := outbox(t)
	story(t, pool)
	var pages []string
	request := deadletters.ListRequest{Limit: 3}
	for range 4 {
		page, err := r.List(t.Context(), request)
		pages = append(pages, numbers(t, page, err))
		pgtest.Exec(pool, `insert into outbox.outbox_dead_letters (event_id, namespace, topic, reason, attempts) values ($1, 'shop', 'orders', 'poison_message', 1)`, eventID(9))
		if request.After = page.Next; page.Next == 0 {
			break
		}
	}
	need.Want(t, "4 3 2, 1", "pages %s", strings.Join(pages, ", "))
}

// Show and Event return everything, and a payload on request only. CONTRACT: C-41
// REQUIREMENT: STORAGE-16, STORAGE-18, STORAGE-19
func TestShowReturnsEverything(t *testing.T) {
	t.Parallel()
	pool, r := outbox(t)
	story(t, pool)
	for _, payload := range []bool{false, true} {
		content := deadletters.Content{}
		if payload {
			content = deadletters.Content{Headers: json.RawMessage(`{"trace": "s3cr3t"}`), Payload: json.RawMessage(`{"card": "s3cr3t"}`)}
		}
		deadLetter, err := r.Show(t.Context(), eventID(2), payload)
		need.That(t, reflect.DeepEqual(deadLetter.Content, content), "payload %v: show has the content %+v, want %+v", payload, deadLetter.Content, content)
		deadLetter.Content = deadletters.Content{}
		compare(t, "show", deadLetter, err)
		history, err := r.Event(t.Context(), eventID(4), payload)
		need.Must(t, history.Event != nil && reflect.DeepEqual(history.Event.Content, content), "payload %v: the event is %+v, want the content %+v", payload, history.Event, content)
		history.Event.Content = deadletters.Content{}
		compare(t, "event", history, err)
	}
	for id, want := range map[string]int64{"1": 1, eventID(4): 5} {
		deadLetter, err := r.Show(t.Context(), id, false)
		need.That(t, err == nil && deadLetter.ID == want, "%s is dead letter %d, want %d: %v", id, deadLetter.ID, want, err)
	}
	groups, err := r.Groups(t.Context(), deadletters.Filter{})
	compare(t, "groups", groups, err)
	if _, err := r.Show(t.Context(), "99", false); !errors.Is(err, deadletters.ErrNotFound) {
		t.Errorf("a dead letter that is not there: %v", err)
	}
	if _, err := r.Show(t.Context(), "6", false); !errors.Is(err, deadletters.ErrNotFound) {
		t.Errorf("a dead letter of another namespace: %v", err)
	}
	if _, err := r.Show(t.Context(), "key-1", false); !errors.Is(err, deadletters.ErrInvalidRequest) {
		t.Errorf("no id: %v", err)
	}

	for _, at := range []string{"-infinity", "infinity", "20000-01-01Z"} { // as adopted rows may have
		pgtest.Exec(pool, `update outbox.outbox_events set created_at = $1::text::timestamptz, updated_at = $1::text::timestamptz, next_attempt_at = $1::text::timestamptz`, at)
		for _, lease := range []string{`status = 'pending', locked_by = null, locked_until = null`, `status = 'processing', locked_by = id, locked_until = created_at`} {
			pgtest.Exec(pool, `update outbox.outbox_events set `+lease+` where id = $1`, eventID(6))
			history, err := r.Event(t.Context(), eventID(6), false)
			_, unwritable := json.Marshal(history)
			need.That(t, err == nil && unwritable == nil, "an event with times of %s: %v, %v", at, err, unwritable)
		}
		need.Want(t, nil, "a dead letter of an event with times of %s: %v", need.Err(r.Show(t.Context(), eventID(1), false)), at)
	}
	pgtest.Exec(pool, `update outbox.outbox_events set payload = to_jsonb(repeat('x', $1)), size_bytes = $1 where id = $2`, deadletters.MaxPayload+1, eventID(1))
	if deadLetter, err := r.Show(t.Context(), eventID(1), true); err != nil || deadLetter.Payload != nil || !strings.Contains(deadLetter.PayloadOmitted, "read it in the database") {
		t.Errorf("a large payload: %v, %v", deadLetter.PayloadOmitted, err)
	}
	pgtest.Exec(pool, `delete from outbox.outbox_events`)
	if deadLetter, err := r.Show(t.Context(), eventID(1), true); err != nil || deadLetter.Status != "" || deadLetter.PayloadOmitted != "the event's row is gone" {
		t.Errorf("an event that is gone: %+v, %v", deadLetter, err)
	}
	if history, err := r.Event(t.Context(), eventID(1), true); err != nil || history.Event != nil || len(history.DeadLetters) != 1 {
		t.Errorf("an event that is gone: %+v, %v", history, err)
	}
}

// An event is found by its dedupe key, also by one that looks like an id.
func TestEventIsFoundByItsDedupeKey(t *testing.T) {
	t.Parallel()
	pool, r := outbox(t)
	story(t, pool)
	pgtest.Exec(pool, `update outbox.outbox_events set dedupe_key = $1 where id = $2`, eventID(77), eventID(1))
	pgtest.Exec(pool, `update outbox.outbox_events set dedupe_key = 'key-2' where id = $1`, eventID(3))
	for key, want := range map[string]string{"key-6": eventID(6), eventID(77): eventID(1), eventID(6): eventID(6)} {
		history, err := r.Event(t.Context(), key, false)
		need.That(t, err == nil && history.Event != nil && history.Event.ID == want, "%s: %+v, %v", key, history.Event, err)
	}
	if _, err := r.Event(t.Context(), "key-5", false); !errors.Is(err, deadletters.ErrNotFound) {
		t.Errorf("a key of another namespace: %v", err)
	}
	need.Fails(t, eventID(2)+" or "+eventID(3), "a key of two topics: %v", need.Err(r.Event(t.Context(), "key-2", false)))
}

// An original has its copies, and a copy its original, for each reader that sees one of the two, also where the original's row is gone.
// CONTRACT: C-19
func TestCopiesAreFollowedBothWays(t *testing.T) {
	t.Parallel()
	pool, reader := outbox(t)
	story(t, pool)
	copied := func(from, to string) {
		pgtest.Exec(pool, `update outbox.outbox_events set status = 'delivered' where topic = $1 and status = 'pending'`, from)
		pgtest.Exec(pool, `select outbox.outbox_copy(string_to_array($2, ' '), array_agg(id)) from outbox.outbox_events where topic = $1 and status = 'delivered'`, from, to)
	}
	copied("orders", "warehouse billing")
	copied("billing", "audit")
	pgtest.Exec(pool, `update outbox.outbox_events set headers = jsonb_build_object('originalid', $1::text, 'originaltopic', 'orders') where id = $2`, eventID(6), eventID(1)) // by its producer
	pgtest.Exec(pool, `insert into outbox.outbox_workers (worker, dispatcher, namespace, topics, copies)
		select gen_random_uuid(), '', 'shop', t::text[], c::text[] from (values ('{orders}', '{warehouse,billing}'), ('{audit}', '{}')) as w (t, c)`)
	const copies = "; audit pending, billing delivered, warehouse pending"
	id := func(topic string) string {
		return pgtest.Value[string](pool, `select id::text from outbox.outbox_events where topic = $1 and (topic <> 'orders' or dedupe_key = 'key-6')`, topic)
	}
	look := func(topics, event string) string {
		r := *reader
		r.topics = strings.Fields(topics)
		if topics == "" {
			r.topics = nil
		}
		h, err := r.Event(t.Context(), event, false)
		if errors.Is(err, deadletters.ErrNotFound) {
			return "not found"
		}
		need.OK(t, err)
		var text []string
		for _, c := range h.Copies {
			need.Want(t, id(c.Topic), "the copy of topic "+c.Topic+" is %s, want %s", c.ID)
			text = append(text, c.Topic+" "+c.Status)
		}
		if h.Original != nil {
			need.Want(t, eventID(6), "the original is %s, want %s", h.Original.ID)
			return h.Original.Topic + " " + h.Original.Status
		}
		return strings.TrimSuffix(map[bool]string{false: "gone"}[h.Event != nil]+"; "+strings.Join(text, ", "), "; ")
	}
	audit := id("audit")
	for _, row := range []struct{ topics, id, want string }{
		{"", eventID(6), copies},
		{"", id("billing"), "orders delivered"},
		{"", audit, "orders delivered"},
		{"", eventID(1), ""},
		{"orders", id("billing"), "orders delivered"},
		{"audit", eventID(6), copies},
		{"billing", audit, "not found"},
		{"bills", eventID(6), "not found"},
	} {
		need.Want(t, row.want, row.topics+" "+row.id+": %q, want %q", look(row.topics, row.id))
	}
	pgtest.Exec(pool, `delete from outbox.outbox_events where id = $1`, eventID(6))
	need.Want(t, "orders ", "a copy of what is gone: %q, want %q", look("", audit))
	need.Want(t, "gone"+copies, "what is gone: %q, want %q", look("orders", eventID(6)))
	pgtest.Exec(pool, `delete from outbox.outbox_workers`)
	reader.copies = []string{"billing"}
	need.Want(t, "gone; billing delivered", "without a dispatcher: %q, want %q", look("", eventID(6)))
}

// compare compares the JSON of a result with the one that was accepted.
func compare(t *testing.T, name string, result any, err error) {
	t.Helper()
	need.Must(t, err == nil, "%s: %v", name, err)
	got, err := json.MarshalIndent(result, "", "  ")
	need.OK(t, err)
	golden.Check(t, "read.golden", name+".json", string(got))
}

// A client gets over HTTP what the reader returns, also its errors.
func TestClientReturnsWhatTheReaderReturns(t *testing.T) {
	t.Parallel()
	pool, r := outbox(t)
	story(t, pool)
	server := httptest.NewServer(deadletters.Handler(r))
	defer server.Close()
	c := deadletters.Client{URL: server.URL}
	wrong := deadletters.Filter{Resolved: true}
	same(t, "groups")(r.Groups(t.Context(), deadletters.Filter{Topic: "orders"}))(c.Groups(t.Context(), deadletters.Filter{Topic: "orders"}))
	for _, by := range append(slices.Clone(deadletters.Groupings), "a/b") {
		same(t, "by "+string(by))(r.CountBy(t.Context(), deadletters.Filter{Topic: "orders"}, by))(c.CountBy(t.Context(), deadletters.Filter{Topic: "orders"}, by))
	}
	same(t, "wrong counts")(r.CountBy(t.Context(), wrong, deadletters.ByTenant))(c.CountBy(t.Context(), wrong, deadletters.ByTenant))
	same(t, "wrong groups")(r.Groups(t.Context(), wrong))(c.Groups(t.Context(), wrong))
	for name, request := range map[string]deadletters.ListRequest{
		"all": {}, "first": {Limit: 2}, "second": {Limit: 2, After: 4}, "resolved": {Filter: deadletters.Filter{Resolved: true}},
		"everything": {Filter: deadletters.Filter{IDs: []string{"2", eventID(3)}, Topic: "orders", Type: "OrderPlaced", Aggregate: "order/1", Tenant: tenant,
			Reason: string(dispatcher.ReasonPermanentFailure), ErrorContains: "Consumer", Since: noon.Add(-time.Nanosecond * 1000), Until: noon.Add(time.Second)}},
		"wrong": {Limit: -1, After: -1, Filter: deadletters.Filter{Group: "x"}},
	} {
		same(t, name)(r.List(t.Context(), request))(c.List(t.Context(), request))
	}
	for _, id := range []string{"2", eventID(4), "99", "a/b?c"} {
		for _, payload := range []bool{false, true} {
			same(t, "show "+id)(r.Show(t.Context(), id, payload))(c.Show(t.Context(), id, payload))
			same(t, "event "+id)(r.Event(t.Context(), id, payload))(c.Event(t.Context(), id, payload))
		}
	}
	pgtest.Exec(pool, `update outbox.outbox_events set dedupe_key = 'a/b?c' where id = $1`, eventID(1))
	h, err := c.Event(t.Context(), "a/b?c", false)
	need.That(t, err == nil && h.Event != nil && h.Event.ID == eventID(1), "a key with a slash: %+v, %v", h, err)
}

// same compares two results and their errors.
func same(t *testing.T, name string) func(any, error) func(any, error) {
	return func(want any, wantErr error) func(any, error) {
		return func(got any, err error) {
			t.Helper()
			a, _ := json.Marshal(want)
			b, _ := json.Marshal(got)
			need.That(t, wantErr != nil || (err == nil && string(a) == string(b)), "%s: %s, %v\nwant %s", name, b, err, a)
			if wantErr != nil && (err == nil || err.Error() != wantErr.Error() || errors.Is(err, deadletters.ErrNotFound) != errors.Is(wantErr, deadletters.ErrNotFound) ||
				errors.Is(err, deadletters.ErrInvalidRequest) != errors.Is(wantErr, deadletters.ErrInvalidRequest)) {
				t.Errorf("%s: %v\nwant %v", name, err, wantErr)
			}
		}
	}
}

// Each request has the same result in every mode of the driver, also in the one for PgBouncer before 1.21.
func TestReaderWorksInEveryModeOfTheDriver(t *testing.T) {
	t.Parallel()
	dsn := pgtest.Migrated(t)
	story(t, pgtest.Open(t, dsn))
	pgtest.EachMode(t, func(t *testing.T, mode pgtest.Mode) {
		connect := func(ctx context.Context) (*pgx.Conn, error) { return pgx.Connect(ctx, mode.In(dsn)) }
		for name, topics := range map[string][]string{"all topics": nil, "one topic": {"orders"}} {
			r := New(connect, Options{Namespace: "shop", Topics: topics})
			f := deadletters.Filter{
				IDs: []string{eventID(1), "2"}, Topic: "orders", Type: "OrderPlaced", Aggregate: "order/1", Tenant: tenant, Reason: "permanent_failure",
				ErrorContains: "422", Since: noon, Until: noon.AddDate(1, 0, 0),
			}
			groups, err := r.Groups(t.Context(), f)
			need.That(t, err == nil && len(groups.Groups) == 1, "%s: groups: %+v, %v", name, groups, err)
			page, err := r.List(t.Context(), deadletters.ListRequest{Filter: f})
			need.That(t, err == nil && len(page.DeadLetters) == 1, "%s: list: %+v, %v", name, page, err)
			deadLetter, err := r.Show(t.Context(), eventID(1), true)
			need.That(t, err == nil && string(deadLetter.Payload) == `{"card": "s3cr3t"}` && len(deadLetter.Failures) == 1, "%s: show: %+v, %v", name, deadLetter, err)
			deadLetter, err = r.Show(t.Context(), "2", false)
			need.That(t, err == nil && deadLetter.ID == 2, "%s: show a number: %+v, %v", name, deadLetter, err)
			history, err := r.Event(t.Context(), "key-4", false)
			need.That(t, err == nil && history.Event != nil && len(history.DeadLetters) != 0, "%s: event: %+v, %v", name, history, err)
		}
	})
}

// A reader cannot write, whatever its login may, and says what to do about a timeout and a missing schema.
func TestReaderCannotWrite(t *testing.T) {
	t.Parallel()
	_, r := outbox(t)
	err := r.read(t.Context(), "try", func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "update outbox.outbox_dead_letters set resolution = null")
		return err
	})
	need.That(t, err != nil && strings.Contains(err.Error(), "25006"), "a write: %v", err)
	r.timeout = time.Millisecond
	err = r.read(t.Context(), "try", func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "select pg_sleep(600)")
		return err
	})
	need.That(t, err != nil && strings.Contains(err.Error(), "a request may take 1ms: narrow it by topic, group or time"), "a long statement: %v", err)
	empty := pgtest.Empty(t)
	r = New(func(ctx context.Context) (*pgx.Conn, error) { return pgx.Connect(ctx, empty) }, Options{})
	need.Fails(t, "run `dispatcher migrate up`", "no schema: %v", need.Err(r.List(t.Context(), deadletters.ListRequest{})))
}

// A replay login reads dead letters and the status of their events. An error says what it may not read, and what to do.
func TestReplayLoginReadsDeadLettersButNotEvents(t *testing.T) {
	t.Parallel()
	pool, _ := outbox(t)
	story(t, pool)
	login := pgtest.Login(t, pool.Pool, migrations.ReplayLogin)
	r := New(func(ctx context.Context) (*pgx.Conn, error) { return pgx.Connect(ctx, login) }, Options{Namespace: "shop"})
	deadLetter, err := r.Show(t.Context(), eventID(1), true)
	if err != nil || deadLetter.Status != "dead" || deadLetter.Error == "" || len(deadLetter.Failures) != 1 || deadLetter.Payload != nil || !strings.Contains(deadLetter.PayloadOmitted, "such as the dispatcher's") {
		t.Errorf("show: %+v, %v", deadLetter, err)
	}
	pgtest.Exec(pool, `delete from outbox.outbox_events where id = $1`, eventID(1))
	deadLetter, err = r.Show(t.Context(), eventID(1), false)
	need.That(t, err == nil && deadLetter.Status == "" && deadLetter.PayloadOmitted == "", "show, of an event whose row is gone: %+v, %v", deadLetter, err)
	for _, id := range []string{eventID(2), "key-2"} {
		_, err := r.Event(t.Context(), id, false)
		need.That(t, err != nil && strings.Contains(err.Error(), "this login may not read the row of an event") && strings.Contains(err.Error(), "use a login that may select on outbox_events, such as the dispatcher's"),
			"event %s: %v", id, err)
	}
	if page, err := r.List(t.Context(), deadletters.ListRequest{}); err != nil || len(page.DeadLetters) == 0 {
		t.Errorf("list: %+v, %v", page, err)
	}
}
