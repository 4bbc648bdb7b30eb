package main

import (
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// Events of a name that no dispatcher serves are listed, moved or discarded, with a dry run and a reason. Dispatchers of other
// names are not red for them, and the journal reports nothing.
//
// CONTRACT: C-95
func TestUnservedEventsAreMovedOrDiscarded(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Empty(t))
	owner := o.file(t, o.owner, "journal: {mode: Enabled}\n")
	run(t, "", "migrate", "up", "-f", owner, "--grant-to-login-of", o.file(t, o.dispatcher, "")).ok(t)
	o.exec(t, `select outbox.enqueue('shpo', 'orders', jsonb_build_object('n', n), p_aggregate_id => 'a', p_dedupe_key => 'key-' || n) from generate_series(1, 3) as n;
		select outbox.enqueue('shop', 'orders', '{"n": 3}', p_dedupe_key => 'key-3'); select outbox.enqueue('old', 'gone', '{}');
		update outbox.outbox_events set next_attempt_at = now() - interval '1 hour'`)
	name := []string{"-f", owner, "--namespace", "shpo", "--topic", "orders", "--reason", "misspelt"}
	unserved := func(what string, more ...string) output {
		return run(t, "", append(append([]string{"unserved", what}, name...), more...)...)
	}

	// A worker that is not in outbox_workers holds one.
	o.exec(t, `update outbox.outbox_events set status = 'processing', attempts = 1, lease = nextval('outbox.outbox_leases'), locked_by = '6ba7b810-9dad-11d1-80b4-00c04fd430c8', locked_until = now() where payload ->> 'n' = '1'`)
	if list := run(t, "", "unserved", "list", "-f", owner); strings.Contains(list.out, "shpo") {
		t.Errorf("a name of which a worker holds an event is listed:\n%s", list.out)
	}
	unserved("discard").ended(t, 1, "is served by worker 6ba7b810-9dad-11d1-80b4-00c04fd430c8")
	o.exec(t, `update outbox.outbox_events set status = 'pending', attempts = 0, locked_by = null, locked_until = null where payload ->> 'n' = '1'`)

	run(t, "", "unserved", "list", "-f", owner).ok(t, "NAMESPACE  TOPIC   PENDING\nold        gone    1\nshop       orders  1\nshpo       orders  3\n")
	check := run(t, "", "check", "--data", "-f", o.file(t, o.dispatcher, dispatching("{log: {}}")+"topics: [payments]\n"))
	check.ended(t, 3, "FAIL  unserved", `"orders" of namespace "shop"`)
	check = run(t, "", "check", "--data", "-f", o.file(t, o.dispatcher, "name: bank\nnamespace: bank\nsink: {log: {}}\n"))
	check.ok(t, "ok  unserved   due in topics that no dispatcher serves: 5")

	unserved("move", "--to-namespace", "shop", "--dry-run").ok(t, `2 events of topic "orders" of namespace "shpo" would be moved; nothing was changed`, "1 have a dedupe key that is there already")
	if n := o.count(t, "namespace = 'shpo'"); n != 3 {
		t.Errorf("%d of 3 events are there after a dry run", n)
	}
	unserved("move", "--to-namespace", "shop").ok(t, `2 events of topic "orders" of namespace "shpo" moved`, "1 have a dedupe key")
	if got := o.text(t, `select string_agg(concat_ws(' ', payload ->> 'n', seq, key_hash = outbox.outbox_key_hash('shop', 'orders', null, 'a'), last_error like 'moved from topic orders of namespace shpo by %: misspelt'), ', ' order by seq)
		from outbox.outbox_events where namespace = 'shop' and aggregate_id is not null`); got != "1 6 t t, 2 7 t t" {
		t.Errorf("moved events: %s", got)
	}
	unserved("discard").ok(t, `1 events of topic "orders" of namespace "shpo" discarded`)
	if got := o.text(t, `select concat_ws(' ', resolution, resolution_reason, resolved_by) from outbox.outbox_dead_letters`); got != "discarded misspelt "+o.owner {
		t.Errorf("the dead letter: %s", got)
	}
	run(t, "", "verify", "-f", owner).ok(t)
	o.exec(t, `select set_config('outbox.removal', 'retention', true); delete from outbox.outbox_events where status = 'dead'`)
	run(t, "", "verify", "-f", owner).ok(t) // its dead letter was discarded, so retention may remove it

	o.exec(t, `insert into outbox.outbox_workers (worker, dispatcher, namespace, topics, seen_at) values (gen_random_uuid(), 'other', 'old', '{}', now())`)
	run(t, "", "unserved", "discard", "-f", owner, "--namespace", "old", "--topic", "gone", "--reason", "x").ended(t, 1, `is served by dispatcher other`)
	run(t, "", "unserved", "discard", "-f", owner, "--namespace", "old", "--topic", "gone").ended(t, 1, "no reason")
	unserved("move").ended(t, 1, "the new name is the old one")

	o.exec(t, `insert into outbox.outbox_workers (worker, dispatcher, namespace, topics, seen_at) values (gen_random_uuid(), 'other', 'many', '{}', now());
		select outbox.enqueue('many', 'topic-' || n, '{}') from generate_series(1, 1001) as n; select outbox.enqueue('zoo', 'lost', '{}')`)
	run(t, "", "unserved", "list", "-f", owner).ok(t, "zoo        lost    1\n") // behind more names than a list has
}
