package producer_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/outbox-operator/outbox-operator/dispatcher/client/producer"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

func keyed(key string) producer.Event { return event(func(e *producer.Event) { e.DedupeKey = key }) }

// CONTRACT: C-1, C-11
func TestDedupeKeyEnqueuesOnce(t *testing.T) {
	for name, begin := range drivers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := pgtest.Migrated(t)
			tx := begin(t, dsn)
			first, err := tx.enqueue(keyed("a"), keyed("b"), keyed("a"), event(nil), event(nil))
			check(t, err)
			need.That(t, first[0].Enqueued && first[1].Enqueued && first[3].Enqueued && first[4].Enqueued, "got %+v for new events, want Inserted", first)
			if first[2].Enqueued || first[2].ID != first[0].ID {
				t.Errorf("the same key twice in a batch: %+v, want the id %s and not enqueued", first[2], first[0].ID)
			}
			check(t, tx.commit())

			tx = begin(t, dsn)
			elsewhere := keyed("a")
			elsewhere.Topic = "refunds"
			again, err := tx.enqueue(keyed("b"), elsewhere)
			check(t, err)
			if again[0].Enqueued || again[0].ID != first[1].ID {
				t.Errorf("the key of a committed event: %+v, want the id %s and not enqueued", again[0], first[1].ID)
			}
			need.That(t, again[1].Enqueued, "a key was taken for that of another topic")
			check(t, tx.commit())
			pgtest.Want(pgtest.Open(t, dsn), 5, "%d rows, want 5", "select count(*) from outbox.outbox_events")
		})
	}
}

// A producer takes events back by their keys and ids, in its transaction, and hears which it was in time for.
// CONTRACT: C-17
func TestWithdrawSaysWhatBecameOfEach(t *testing.T) {
	for name, begin := range drivers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := pgtest.Migrated(t)
			pool := pgtest.Open(t, dsn)
			tx := begin(t, dsn)
			was, err := tx.enqueue(keyed("a"), keyed("b"), event(nil))
			check(t, err)
			check(t, tx.commit())
			pgtest.Exec(pool, `update outbox.outbox_events set status = 'delivered', attempts = 1, lease = 7 where dedupe_key = 'b'`)
			named := func(key string, id uuid.UUID) producer.Named {
				return producer.Named{Namespace: "shop", Topic: "orders", DedupeKey: key, ID: id}
			}
			want := []producer.Withdrawal{
				{Outcome: producer.Withdrawn, ID: was[0].ID}, {Outcome: producer.TooLate, ID: was[1].ID, Token: 7},
				{Outcome: producer.Withdrawn, ID: was[2].ID}, {Outcome: producer.Unknown},
			}
			for _, end := range []string{"rollback", "commit"} {
				tx = begin(t, dsn)
				check(t, tx.exec("create table if not exists work (n int)"))
				said, err := tx.withdraw(named("a", uuid.Nil), named("b", uuid.Nil), named("", was[2].ID), named("c", uuid.Nil))
				check(t, err)
				need.WantAll(t, want, "the withdrawals are %+v, want %+v", said)
				for _, bad := range []producer.Named{named("", uuid.Nil), named("a", was[0].ID), {Topic: "orders", DedupeKey: "a"}} {
					_, err := tx.withdraw(named("a", uuid.Nil), bad)
					need.That(t, errors.Is(err, producer.ErrInvalid) && strings.Contains(err.Error(), "event 2 of 2"), "%+v: %v", bad, err)
				}
				kept := "pending pending"
				if end == "commit" {
					check(t, tx.commit())
					kept = "withdrawn withdrawn"
				} else {
					check(t, tx.rollback())
				}
				pgtest.Want(pool, kept, "after the "+end+" they are %s, want %s", `select string_agg(status, ' ') from outbox.outbox_events where status <> 'delivered'`)
			}
		})
	}
}

func begin(t *testing.T, pool pgtest.DB) pgx.Tx {
	t.Helper()
	tx, err := pool.Begin(t.Context())
	check(t, err)
	t.Cleanup(func() { tx.Rollback(context.Background()) })
	return tx
}

// What PostgreSQL would refuse is refused before anything is sent: no row, and the transaction is
// still usable. CONTRACT: C-12, C-13, C-16
// REQUIREMENT: OVERVIEW-15
func TestInvalidEventsAreRefusedBeforeTheyAreSent(t *testing.T) {
	tenant := uuid.MustParse("0190b6c4-1f2e-7abc-8def-001122334455")
	payload := func(p any) func(*producer.Event) { return func(e *producer.Event) { e.Payload = p } }
	text := func(s string) func(*producer.Event) { return payload(json.RawMessage(s)) }
	key := func(k string) func(*producer.Event) {
		return func(e *producer.Event) { e.TenantID, e.DedupeKey = tenant, k }
	}
	cases := map[string]struct {
		change func(*producer.Event)
		want   string // the error says this
	}{
		"no namespace":          {func(e *producer.Event) { e.Namespace = "" }, "Namespace is missing; set it"},
		"no topic":              {func(e *producer.Event) { e.Topic = "" }, "Topic is missing; set it"},
		"long topic":            {func(e *producer.Event) { e.Topic = strings.Repeat("é", 256) }, "Topic has 256 characters; use at most 255"},
		"long aggregate":        {func(e *producer.Event) { e.AggregateID = strings.Repeat("a", 1025) }, "AggregateID has 1025 characters"},
		"NUL in a text":         {func(e *producer.Event) { e.PartitionKey = "a\x00" }, "PartitionKey has a NUL"},
		"a text not UTF-8":      {func(e *producer.Event) { e.EventType = "\xff" }, "EventType has a NUL or bytes that are not UTF-8"},
		"key too long":          {func(e *producer.Event) { e.DedupeKey = strings.Repeat("😀", 700) }, "DedupeKey has 2810 bytes with Namespace and Topic"},
		"header without a name": {func(e *producer.Event) { e.Headers = map[string]string{"": "a"} }, "Headers has an empty name"},
		"header with NUL":       {func(e *producer.Event) { e.Headers = map[string]string{"a": "\x00"} }, `Headers ["a"] has a NUL`},
		"headers too large":     {func(e *producer.Event) { e.Headers = map[string]string{"a": strings.Repeat("b", 65528)} }, "Headers have 65537 bytes as JSON"},
		"many attempts":         {func(e *producer.Event) { e.MaxAttempts = 1001 }, "MaxAttempts is 1001"},
		"no such strategy":      {func(e *producer.Event) { e.Retry = &producer.Retry{Strategy: "Never"} }, `Retry has the unknown strategy "Never"`},
		"negative delay":        {func(e *producer.Event) { e.Delay = -time.Second }, "Delay is negative (-1s)"},
		"negative expiry":       {func(e *producer.Event) { e.Expires = -time.Second }, "Expires is negative, or set with ExpiresAt (-1s"},
		"expires twice":         {func(e *producer.Event) { e.Expires, e.ExpiresAt = 1, time.Now() }, "Expires is negative, or set with ExpiresAt (1ns"},
		"no payload":            {payload(nil), "Payload is missing"},
		"no JSON value":         {payload(make(chan int)), "Payload of type chan int cannot be written as JSON"},
		"not JSON":              {text(`{"a": secret}`), "Payload is not JSON, at byte 7"},
		"empty":                 {payload([]byte{}), "Payload is not JSON"},
		"cut off":               {text(`{"a": 1`), "Payload is not JSON"},
		"two values":            {text(`1 2`), "Payload is not JSON"},
		"payload not UTF-8":     {text("\"\xff\""), "Payload has bytes that are not UTF-8"},
		"NUL escape":            {payload("a\x00b"), `Payload has the character \u0000`},
		"NUL escape in a key":   {text(`{"\u0000": 1}`), `Payload has the character \u0000`},
		"high surrogate alone":  {text(`"\ud83dx"`), `half of a surrogate pair (\ud83d)`},
		"low surrogate alone":   {text(`"\\\ude00"`), `half of a surrogate pair (\ude00)`},
		"two high surrogates":   {text(`"\ud83d\ud83d"`), `half of a surrogate pair (\ud83d)`},
		"huge exponent":         {text(`[1e140000]`), "Payload has a number"},
		"tiny exponent":         {text(`1E-20000`), "Payload has a number"},
		"exponent of an int64":  {text(`1e99999999999999999999`), "Payload has a number"},
		"many digits":           {text(strings.Repeat("9", 1001)), "Payload has a number"},
		"nested":                {text(strings.Repeat("[", 1001) + strings.Repeat("]", 1001)), "Payload is nested deeper than 1000"},
		"too large":             {payload(strings.Repeat("x", 100)), "Payload has 102 bytes, more than the limit of 101"},
		"another tenant's key":  {key(uuid.NewString() + "/1"), `DedupeKey does not start with the tenant; make it "0190b6c4-1f2e-7abc-8def-001122334455/" and the rest`},
		"tenant without slash":  {key(tenant.String()), "DedupeKey does not start with the tenant"},
		"tenant in braces":      {key("{" + tenant.String() + "}/1"), "DedupeKey does not start with the tenant"},
		"slash first":           {key("/" + tenant.String()), "DedupeKey does not start with the tenant"},
	}
	pool := pgtest.Open(t, pgtest.Migrated(t))
	outbox := producer.New(producer.Options{MaxPayloadBytes: 101})
	unbounded := producer.New(producer.Options{})
	tx := begin(t, pool)
	for name, c := range cases {
		p := unbounded
		if name == "too large" {
			p = outbox
		}
		_, err := p.Enqueue(t.Context(), tx, event(c.change))
		need.That(t, errors.Is(err, producer.ErrInvalid) && strings.Contains(err.Error(), c.want), "%s: error %q, want ErrInvalid with %q", name, err, c.want)
		need.That(t, err == nil || !strings.Contains(err.Error(), "secret"), "%s: the error shows the payload: %v", name, err)
		_, err = p.EnqueueBatch(t.Context(), tx, []producer.Event{event(nil), event(c.change)})
		need.That(t, errors.Is(err, producer.ErrInvalid) && strings.Contains(err.Error(), "event 2 of 2: "),
			"%s: in a batch: error %v, want ErrInvalid that names event 2 of 2", name, err)
	}
	need.Want(t, nil, "a payload of exactly the limit, and a transaction still usable: %v", need.Err(outbox.Enqueue(t.Context(), tx, event(payload(strings.Repeat("x", 99))))))
	check(t, tx.Commit(t.Context()))
	pgtest.Want(pool, 1, "%d rows, want only the valid one", "select count(*) from outbox.outbox_events")
}

// The tenant may be written in any of the forms that C-12 names. CONTRACT: C-12
//
// REQUIREMENT: MODKIT-4
func TestTenantsHaveAnyForm(t *testing.T) {
	pool := pgtest.Open(t, pgtest.Migrated(t))
	tenant := uuid.MustParse("0190b6c4-1f2e-7abc-8def-001122334455")
	bare := strings.ReplaceAll(tenant.String(), "-", "")
	for _, key := range []string{"", tenant.String() + "/", strings.ToUpper(tenant.String()) + "/1", bare + "/1/2", strings.ToUpper(bare) + "/1"} {
		e := event(func(e *producer.Event) { e.TenantID, e.DedupeKey = tenant, key })
		need.Want(t, nil, "key %q: %v", need.Err(producer.New(producer.Options{}).Enqueue(t.Context(), pool, e)), key)
	}
	untenanted := event(func(e *producer.Event) { e.DedupeKey = "anything" })
	need.Want(t, nil, "a key without a tenant: %v", need.Err(producer.New(producer.Options{}).Enqueue(t.Context(), pool, untenanted)))
}

// unsent is a transaction in which no statement runs.
type unsent struct{}

func (unsent) Query(context.Context, string, ...any) (pgx.Rows, error) {
	return nil, errors.New("no statement runs here")
}

// Whatever passes the check is something that jsonb holds, and the check refuses little else: on
// random texts made of JSON's difficult parts it agrees with PostgreSQL. CONTRACT: C-13
func TestPayloadCheckAgreesWithPostgreSQL(t *testing.T) {
	pool := pgtest.Open(t, pgtest.Migrated(t))
	pgtest.Exec(pool, `create function holds(b bytea) returns boolean language plpgsql as $$
		begin return convert_from(b, 'UTF8')::jsonb is not null; exception when others then return false; end $$`)
	parts := []string{"[", "]", "{", "}", ",", ":", `"a"`, `"`, `\`, `\u`, `\u0000`, `\\u0000`, `\ud800`, `\udc00`, `\uD83D\uDE00`,
		`\u00e9`, "0000", "é", "\xff", "\x00", "\n", "1", "-", "0", ".5", "e5", "E-5", "e+400", "e400000", "true", "null", `"b":`}
	random := rand.New(rand.NewPCG(1, 2))
	texts := make([][]byte, 20_000)
	for i := range texts {
		text := ""
		for range 1 + random.IntN(6) {
			text += parts[random.IntN(len(parts))]
		}
		if open, half := random.IntN(2), `["`+text+`"]`; open == 0 {
			text = half
		}
		texts[i] = []byte(text)
	}
	rows, err := pool.Query(t.Context(), "select holds(b) from unnest($1::bytea[]) with ordinality as u (b, n) order by n", texts)
	check(t, err)
	defer rows.Close()
	accepted := 0
	for i := 0; rows.Next(); i++ {
		var holds bool
		check(t, rows.Scan(&holds))
		_, err := producer.New(producer.Options{}).Enqueue(t.Context(), unsent{}, event(func(e *producer.Event) { e.Payload = texts[i] }))
		if !errors.Is(err, producer.ErrInvalid) {
			err = nil
		}
		if (err == nil) != holds {
			t.Errorf("%q: PostgreSQL holds it: %t; the check says: %v", texts[i], holds, err)
		}
		if holds {
			accepted++
		}
	}
	check(t, rows.Err())
	need.That(t, accepted >= 1000, "only %d of the texts are JSON: the test tests too little", accepted)
}

func ofKey(key string, lock bool) producer.Event {
	return event(func(e *producer.Event) { e.AggregateID, e.LockKey = key, lock })
}

// With LockKey the second transaction of a key waits for the first one's commit, and its event comes
// behind. Other keys, and producers without the option, do not wait.
// CONTRACT: C-50
func TestLockKeyOrdersTransactions(t *testing.T) {
	t.Parallel()
	for name, begin := range drivers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := pgtest.Migrated(t)
			pool := pgtest.Open(t, dsn)
			first := begin(t, dsn)
			_, err := first.enqueue(ofKey("a", true))
			check(t, err)
			for _, free := range []producer.Event{ofKey("b", true), ofKey("a", false), event(func(e *producer.Event) {
				e.Topic, e.AggregateID, e.LockKey = "refunds", "a", true
			})} {
				other := begin(t, dsn)
				check(t, other.exec(`set local lock_timeout = '10s'`))
				_, err := other.enqueue(free)
				check(t, err)
				check(t, other.rollback())
			}
			second := begin(t, dsn)
			done := make(chan error, 1)
			go func() {
				_, err := second.enqueue(ofKey("a", true))
				done <- errors.Join(err, second.commit())
			}()
			for waits := false; !waits; {
				check(t, pool.QueryRow(t.Context(), `select exists (select from pg_locks where locktype = 'advisory' and not granted
					and database = (select oid from pg_database where datname = current_database()))`).Scan(&waits))
				if len(done) > 0 {
					t.Fatalf("the second transaction did not wait: %v", <-done)
				}
			}
			_, err = first.enqueue(event(func(e *producer.Event) { e.EventType, e.PartitionKey, e.LockKey = "last of the first", "a", true }))
			check(t, err)
			check(t, first.commit())
			check(t, <-done)
			rows, err := pool.Query(t.Context(), `select coalesce(event_type, '') from outbox.outbox_events order by seq`)
			check(t, err)
			types, err := pgx.CollectRows(rows, pgx.RowTo[string])
			check(t, err)
			need.That(t, slices.Equal(types, []string{"", "last of the first", ""}), "the events are in the order %q, want the second transaction's behind both of the first", types)
		})
	}
}

func TestLockKeyNeedsAKey(t *testing.T) {
	t.Parallel()
	_, err := producer.New(producer.Options{}).Enqueue(t.Context(), nil, ofKey("", true))
	need.That(t, errors.Is(err, producer.ErrInvalid), "LockKey without a key gave %v, want ErrInvalid", err)
}

func numberedIn(aggregate, dedupe string) producer.Event {
	return event(func(e *producer.Event) {
		e.AggregateType, e.AggregateID, e.DedupeKey, e.AggregateSequence = "order", aggregate, dedupe, true
	})
}

// A second transaction that numbers an event of the aggregate waits for the first one's end. One of another
// aggregate, and one without a number, do not.
// REQUIREMENT: STORAGE-41
func TestAggregateSequenceTurns(t *testing.T) {
	t.Parallel()
	for name, begin := range drivers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := pgtest.Migrated(t)
			pool := pgtest.Open(t, dsn)
			first := begin(t, dsn)
			_, err := first.enqueue(numberedIn("a", ""))
			check(t, err)
			for _, free := range []producer.Event{numberedIn("b", ""), ofKey("a", false)} {
				other := begin(t, dsn)
				check(t, other.exec(`set local lock_timeout = '10s'`))
				_, err := other.enqueue(free)
				check(t, err)
				check(t, other.rollback())
			}
			second := begin(t, dsn)
			done := make(chan error, 1)
			go func() {
				_, err := second.enqueue(numberedIn("a", ""))
				done <- errors.Join(err, second.commit())
			}()
			for waits := false; !waits; {
				check(t, pool.QueryRow(t.Context(), `select exists (select from pg_locks where not granted and locktype in ('transactionid', 'tuple')
					and pid in (select pid from pg_stat_activity where datname = current_database()))`).Scan(&waits))
				if len(done) > 0 {
					t.Fatalf("the second transaction did not wait: %v", <-done)
				}
			}
			check(t, first.rollback())
			check(t, <-done)
			pgtest.Want(pool, 1, "after the first transaction's rollback the second one's event has the number %d, want 1", `select aggregate_sequence::int from outbox.outbox_events`)
		})
	}
}

// Producers at once, in batches of aggregates in any order, with duplicates and rollbacks: every aggregate has the
// numbers from 1 without a gap, in the order of seq, and no two wait for each other in a circle.
// REQUIREMENT: STORAGE-27
func TestAggregateSequenceIsDense(t *testing.T) {
	t.Parallel()
	pool := pgtest.Open(t, pgtest.Migrated(t))
	outbox := producer.New(producer.Options{})
	aggregates := strings.Split("abcd", "")
	var group errgroup.Group
	for range 6 {
		group.Go(func() error {
			for n := range 30 {
				var batch []producer.Event
				for range 1 + rand.IntN(6) {
					aggregate, key := aggregates[rand.IntN(len(aggregates))], ""
					if rand.IntN(2) == 0 {
						key = fmt.Sprint(aggregate, rand.IntN(20))
					}
					batch = append(batch, numberedIn(aggregate, key))
				}
				tx, err := pool.Begin(t.Context())
				if err != nil {
					return err
				}
				if len(batch) == 1 {
					_, err = outbox.Enqueue(t.Context(), tx, batch[0])
				} else {
					_, err = outbox.EnqueueBatch(t.Context(), tx, batch)
				}
				end := tx.Commit
				if err != nil || n%5 == 0 {
					end = tx.Rollback
				}
				if err := errors.Join(err, end(t.Context())); err != nil {
					return err
				}
			}
			return nil
		})
	}
	check(t, group.Wait())
	const wrong = `select count(*)::int from (
			select aggregate_sequence, row_number() over (partition by aggregate_id order by seq) as nth,
				count(*) over (partition by aggregate_id) as events, last
			from outbox.outbox_events join outbox.outbox_aggregate_sequences using (namespace, aggregate_type, aggregate_id)) as e
		where aggregate_sequence <> nth or events <> last`
	if n := pgtest.Value[int](pool, wrong); n > 0 {
		t.Errorf("%d events have another number than their place in their aggregate", n)
	}
	need.That(t, pgtest.Value[int](pool, `select count(*)::int from outbox.outbox_events where aggregate_sequence > 10`) != 0, "no aggregate has more than 10 events")
}

func TestAggregateSequenceNeedsAnAggregate(t *testing.T) {
	t.Parallel()
	for _, e := range []producer.Event{numberedIn("", ""), event(func(e *producer.Event) {
		e.AggregateSequence, e.AggregateType, e.AggregateID = true, strings.Repeat("鍵", 500), strings.Repeat("鍵", 500)
	})} {
		_, err := producer.New(producer.Options{}).Enqueue(t.Context(), nil, e)
		need.That(t, errors.Is(err, producer.ErrInvalid), "%.20s: %v, want ErrInvalid", e.AggregateID, err)
	}
}
