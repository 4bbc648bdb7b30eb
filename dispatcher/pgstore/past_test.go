package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// pastRow adds a row with an id and a payload, as old as its id says.
func (o outbox) pastRow(id uuid.UUID, namespace, topic string, age time.Duration, bytes int) {
	o.Helper()
	pgtest.Exec(o, `insert into outbox.outbox_events (id, namespace, topic, headers, payload, created_at, status, attempts, lease)
		values ($1, $2, $3, '{"a": 1}', to_jsonb(repeat('x', $4)), now() - $5::interval, 'delivered', 3, 9)`, id, namespace, topic, bytes, age)
}

// idOf is an id of version 7 of a time.
func idOf(at time.Time, n byte) (id uuid.UUID) {
	ms := at.UnixMilli()
	for i := range 6 {
		id[i] = byte(ms >> (40 - 8*i))
	}
	id[6], id[8], id[15] = 0x70, 0x80, n
	return id
}

// past reads rows, and returns the last bytes of their ids and the sizes of the pages.
func (o outbox) past(p pgstore.Past) (ids, pages []int, looked pgstore.Looked) {
	o.Helper()
	looked, err := o.Store("shop", uuid.New()).(*pgstore.Store).Past(o.Context(), p, func(page []pgstore.PastRow) error {
		pages = append(pages, len(page))
		for _, row := range page {
			ids = append(ids, int(row.Event.ID[15]))
		}
		return nil
	})
	if err != nil {
		o.Fatal(err)
	}
	return ids, pages, looked
}

// Rows come newest first, of the namespace and the topics, of the time and the number that were requested. Rows
// whose ids are not of version 7 come last.
func TestPastRowsComeNewestFirst(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	now := o.Now()
	for n := range 9 {
		age := time.Duration(n) * time.Hour
		o.pastRow(idOf(now.Add(-age), byte(n)), "shop", []string{"a", "b"}[n%2], age, 1)
	}
	o.pastRow(idOf(now, 99), "bank", "a", 0, 1)
	o.pastRow(uuid.MustParse("f0000000-0000-4000-8000-00000000000a"), "shop", "a", 0, 1)
	o.pastRow(uuid.MustParse("e0000000-0000-4000-8000-00000000000b"), "shop", "a", 3*time.Hour, 1)
	for name, c := range map[string]struct {
		past   pgstore.Past
		want   []int
		looked int
	}{
		"all":        {pgstore.Past{Last: 100}, []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11}, 12},
		"the newest": {pgstore.Past{Last: 3}, []int{0, 1, 2}, 10},
		"a topic":    {pgstore.Past{Last: 2, Topics: []string{"b"}}, []int{1, 3}, 10},
		"topics":     {pgstore.Past{Last: 3, Topics: []string{"b", "c", "a"}}, []int{0, 1, 2}, 10},
		"since":      {pgstore.Past{Last: 100, Since: 150 * time.Minute}, []int{0, 1, 2, 10}, 7}, // 3 may have been late
		"none":       {pgstore.Past{Last: 100, Topics: []string{"c"}}, nil, 12},
	} {
		got, _, looked := o.past(c.past)
		if !slices.Equal(got, c.want) || looked != (pgstore.Looked{Rows: c.looked, All: true}) {
			t.Errorf("%s: got %v, looked at %+v; want %v, %d", name, got, looked, c.want, c.looked)
		}
	}
}

// A row is handed over whole, with its status, and one that cannot be read harms no other.
func TestPastRowsAreWhole(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	id := uuid.MustParse("01900000-0000-7000-8000-000000000001")
	o.pastRow(id, "shop", "orders", time.Hour, 3)
	o.pastRow(uuid.MustParse("01900000-0000-7000-8000-000000000002"), "shop", "orders", time.Hour, 3)
	pgtest.Exec(o, `update outbox.outbox_events set event_type = 'Placed', aggregate_id = 'a', status = 'dead', dead_reason = 'permanent_failure' where id = $1`, id)
	pgtest.Exec(o, `update outbox.outbox_events set headers = '[]' where id <> $1`, id)
	var rows []pgstore.PastRow
	_, err := o.Store("shop", uuid.New()).(*pgstore.Store).Past(t.Context(), pgstore.Past{Last: 9}, func(page []pgstore.PastRow) error {
		rows = append(rows, page...)
		return nil
	})
	if err != nil || len(rows) != 2 {
		t.Fatalf("%d rows, error %v", len(rows), err)
	}
	if rows[0].Unreadable == nil || rows[0].Status != "delivered" || rows[1].Unreadable != nil {
		t.Errorf("the first is %+v; want one that cannot be read", rows[0])
	}
	e := rows[1].Event
	if got := fmt.Sprintln(e.ID, e.Namespace, e.Topic, e.EventType, e.AggregateID, e.Headers, string(e.Payload), e.Attempt, e.LeaseNumber, rows[1].Status, rows[1].Reason); got !=
		id.String()+" shop orders Placed a map[a:1] \"xxx\" 3 9 dead permanent_failure\n" {
		t.Error(got)
	}
}

// Pages are bounded in rows and bytes, and the search in rows. CONTRACT: C-35
func TestPastIsBounded(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	now := o.Now()
	for n, bytes := range []int{3 << 20, 1 << 10, 5 << 20, 1 << 10, 3 << 20, 3 << 20} {
		o.pastRow(idOf(now.Add(-time.Duration(n)*time.Minute), byte(n)), "shop", "large", 0, bytes)
	}
	if ids, pages, _ := o.past(pgstore.Past{Last: 100}); !slices.Equal(pages, []int{2, 1, 2, 1}) || len(ids) != 6 {
		t.Errorf("pages of %v rows, of %v", pages, ids)
	}
	pgtest.Exec(o, `delete from outbox.outbox_events`)
	o.fill(2500, "orders")
	if ids, pages, looked := o.past(pgstore.Past{Last: 2100}); len(ids) != 2100 || slices.Max(pages) != 100 || !looked.All {
		t.Errorf("%d rows in pages of %v, looked at %+v", len(ids), pages, looked)
	}
	pgtest.Exec(o, `insert into outbox.outbox_events (id, namespace, topic, payload)
		select ('00000000-0000-7000-8000-' || lpad(to_hex(n + 5000), 12, '0'))::uuid, 'bank', 'orders', '{}' from generate_series(1, 110000) as n`)
	pgtest.Exec(o, `update outbox.outbox_events set namespace = 'bank' where namespace = 'shop'`)
	if ids, _, looked := o.past(pgstore.Past{Last: 10}); len(ids) != 0 || looked != (pgstore.Looked{Rows: 100_100}) {
		t.Errorf("%d rows, looked at %+v; want it to end after 100100", len(ids), looked)
	}
}

// Whatever the statistics say, a look is a part of the primary key: no table is read, and nothing is sorted that
// grows with it.
func TestPastReadsThePrimaryKey(t *testing.T) {
	t.Parallel()
	p := newPlanned(t, pgtest.Migrated(t))
	for _, statistics := range []string{"none", "fresh"} {
		p.fill(20_000, statistics)
		if statistics == "fresh" {
			pgtest.Exec(p, `vacuum analyze outbox.outbox_events`)
		}
		pgtest.Exec(p, `deallocate all`)
		pgtest.Exec(p, `prepare past as `+pgstore.PastSQL())
		pgtest.Exec(p, `prepare past_rows as `+pgstore.PastRowsSQL())
		look := p.explain(`execute past ('shop', null, null, 'ffffffff-ffff-ffff-ffff-ffffffffffff', '00000000-0000-0000-0000-000000000000', 100)`)
		if !look.indexes()["outbox_events_pkey"] || look.has("Seq Scan") || look.has("Sort") || look.buffers() > 400 {
			t.Errorf("statistics %s: a look of 100 rows reads %d buffers: %+v", statistics, look.buffers(), look)
		}
		ids := pgtest.Value[string](p.outbox, `select array_agg(id)::text from (select id from outbox.outbox_events limit 100) as e`)
		if rows := p.explain(`execute past_rows ('` + ids + `')`); rows.has("Seq Scan") || rows.Rows != 100 || rows.buffers() > 1000 {
			t.Errorf("statistics %s: a page of %d rows reads %d buffers: %+v", statistics, rows.Rows, rows.buffers(), rows)
		}
	}
}

// Nothing that a page's reader does keeps a transaction open, its errors end the search, and the database itself
// refuses to write.
func TestPastOnlyReads(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	o.fill(300, "orders")
	// A function in a place that the statements read would be the only way to write.
	pgtest.Exec(o, `alter table outbox.outbox_events rename to real;
		create function outbox.touch() returns boolean language sql volatile as $$ update outbox.real set attempts = 0 returning true $$;
		create view outbox.outbox_events as select * from outbox.real where outbox.touch()`)
	store := o.Store("shop", uuid.New()).(*pgstore.Store)
	nothing := func([]pgstore.PastRow) error { return nil }
	if _, err := store.Past(t.Context(), pgstore.Past{Last: 9}, nothing); err == nil || !strings.Contains(err.Error(), "read-only transaction") {
		t.Errorf("error %v; want that of a transaction that only reads", err)
	}
	pgtest.Exec(o, `drop view outbox.outbox_events; alter table outbox.real rename to outbox_events`)
	stop, calls := errors.New("stop"), 0
	_, err := store.Past(t.Context(), pgstore.Past{Last: 300}, func([]pgstore.PastRow) error {
		calls++
		if held := o.Stat().AcquiredConns(); held != 0 {
			t.Errorf("%d connections are held", held)
		}
		return stop
	})
	if !errors.Is(err, stop) || calls != 1 {
		t.Errorf("after %d calls: %v", calls, err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := store.Past(ended, pgstore.Past{Last: 9}, nothing); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v; want that it was cancelled", err)
	}
}
