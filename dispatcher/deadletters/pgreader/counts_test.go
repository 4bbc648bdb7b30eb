package pgreader

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// addDead adds open dead letters of a topic, which is a group, of ten tenants, types and aggregates.
func addDead(t *testing.T, pool pgtest.DB, topic string, n int) {
	t.Helper()
	pgtest.Exec(pool, `insert into outbox.outbox_dead_letters (event_id, namespace, topic, event_type, aggregate_type, aggregate_id, tenant_id, reason, attempts, dead_at)
		select gen_random_uuid(), 'shop', $1::text, 'Type' || n % 2, 'order', (n % 3)::text, case when n % 4 > 0 then md5((n % 4)::text)::uuid end,
			'permanent_failure', 20, now() from generate_series(1, $2::integer) as n`, topic, n)
}

// A large group is counted whole where that is quick. Where it is not its count is marked, and 1,000 more move no group
// to another place.
func TestLargeGroupsKeepTheirPlace(t *testing.T) {
	if testing.Short() {
		t.Skip("it adds 35,000 dead letters")
	}
	t.Parallel()
	pool, r := outbox(t)
	for topic, n := range map[string]int{"a": 10_002, "b": 10_500, "c": deadletters.GroupCap + 1, "d": 4000, "e": 500, "f": deadletters.GroupCap} {
		addDead(t, pool, topic, n)
	}
	listed := func() (all []string) {
		t.Helper()
		groups, err := r.Groups(t.Context(), deadletters.Filter{})
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range groups.Groups {
			all = append(all, g.Topic+" "+g.Number())
		}
		return all
	}
	r.exact = time.Hour
	if got, want := listed(), []string{"b 10500", "a 10002", "c 10001", "f 10000", "d 4000", "e 500"}; !slices.Equal(got, want) {
		t.Errorf("counted whole: %v, want %v", got, want)
	}
	addDead(t, pool, "a", 100_000) // more than a millisecond counts
	r.exact = time.Millisecond
	want := []string{"a 10000+", "b 10000+", "c 10000+", "f 10000", "d 4000", "e 500"}
	for n := range 10 {
		addDead(t, pool, []string{"b", "a", "c"}[n%3], 100)
		if got := listed(); !slices.Equal(got, want) {
			t.Fatalf("after %d more: %v, want %v", 100*(n+1), got, want)
		}
	}
}

// The most groups are those that match, wherever they are among the others.
func TestGroupsThatMatchAreFoundAmongMore(t *testing.T) {
	t.Parallel()
	pool, r := outbox(t)
	pgtest.Exec(pool, `insert into outbox.outbox_dead_letters (event_id, namespace, topic, reason, class, code, attempts)
		select gen_random_uuid(), 'shop', 'a', 'permanent_failure', 'http', n::text, 20 from generate_series(1, $1::integer) as n`, deadletters.MaxGroups+30)
	addDead(t, pool, "z", 3)
	for _, f := range []deadletters.Filter{{Topic: "z"}, {Type: "Type1"}} {
		if got, err := r.Groups(t.Context(), f); err != nil || len(got.Groups) != 1 || got.Groups[0].Topic != "z" || got.More {
			t.Errorf("%+v: %d groups, more %t, %v", f, len(got.Groups), got.More, err)
		}
	}
	if got, err := r.Groups(t.Context(), deadletters.Filter{}); err != nil || len(got.Groups) != deadletters.MaxGroups || !got.More {
		t.Errorf("without a filter: %d groups, more %t, %v", len(got.Groups), got.More, err)
	}
}

// Dead letters are counted by tenant, type or aggregate, the largest count first, those of the filter alone.
func TestCountBy(t *testing.T) {
	t.Parallel()
	pool, r := outbox(t, "orders", "bills")
	addDead(t, pool, "orders", 24)
	addDead(t, pool, "bills", 2)
	addDead(t, pool, "others", 7) // of another dispatcher
	counts := func(f deadletters.Filter, by deadletters.By) (all []string) {
		t.Helper()
		got, err := r.CountBy(t.Context(), f, by)
		if err != nil || got.By != by || got.More {
			t.Fatalf("%+v, %v", got, err)
		}
		for _, c := range got.Counts {
			all = append(all, fmt.Sprintf("%.4s %d %d", c.Value, c.Count, c.Groups))
			if c.Since.IsZero() || c.Last.Before(c.Since) {
				t.Errorf("%+v has no times", c)
			}
		}
		return all
	}
	for by, want := range map[deadletters.By][]string{
		deadletters.ByTenant:    {"c4ca 7 2", "c81e 7 2", " 6 1", "eccb 6 1"},
		deadletters.ByType:      {"Type 13 2", "Type 13 2"},
		deadletters.ByAggregate: {"orde 9 2", "orde 9 2", "orde 8 1"},
	} {
		if got := counts(deadletters.Filter{}, by); !slices.Equal(got, want) {
			t.Errorf("by %s: %v, want %v", by, got, want)
		}
	}
	if got, want := counts(deadletters.Filter{Topic: "bills"}, deadletters.ByType), []string{"Type 1 1", "Type 1 1"}; !slices.Equal(got, want) {
		t.Errorf("of a topic: %v, want %v", got, want)
	}
	addDead(t, pool, "orders", deadletters.MaxGroups+30)
	pgtest.Exec(pool, `update outbox.outbox_dead_letters set aggregate_id = id`)
	if got, err := r.CountBy(t.Context(), deadletters.Filter{}, deadletters.ByAggregate); err != nil || len(got.Counts) != deadletters.MaxGroups || !got.More {
		t.Errorf("%d aggregates, more %t, %v", len(got.Counts), got.More, err)
	}
}
