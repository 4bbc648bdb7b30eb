package main

import (
	"cmp"
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// keptVariable names the environment variable with the number of events of TestLateSubscriberGetsKeptEvents.
const keptVariable = "OUTBOX_TEST_KEPT"

// A late subscriber gets the kept events in their order, each once, however often the command is ended, next to itself, to retention and to a
// dispatcher that copies.
// CONTRACT: C-19
func TestLateSubscriberGetsKeptEvents(t *testing.T) {
	t.Parallel()
	o := installed(t)
	n, err := strconv.Atoi(cmp.Or(os.Getenv(keptVariable), "4000"))
	check(t, err)
	pgtest.Exec(o.admin, `insert into outbox.outbox_events (id, namespace, topic, payload, aggregate_id, status, created_at, updated_at)
		select gen_random_uuid(), 'shop', 'orders', '{}', 'a' || n % 9, case when n > $1::integer - 10 then 'pending' else 'delivered' end, at, at
		from generate_series(1, $1) as n cross join lateral (select now() - case when n <= 100 then interval '4 days' else '0' end as at) as made`, n)
	file := o.file(t, o.dispatcher, "topics: [orders]\n"+dispatching("{copy: {topics: [orders.billing]}}")+"retention: {delivered: 72h}\n")
	copying := []string{"copy", "-f", file, "--from", "orders", "--to", "orders.billing", "--since", "72h", "--rate"}
	for range 3 {
		cmd := command(t, append(copying, strconv.Itoa(n/10))...)
		check(t, cmd.Start())
		const copies = `live and namespace = 'shop' and topic = 'orders.billing'`
		before := o.count(t, copies)
		await(t, "it copies", func() bool { return o.count(t, copies) > before })
		check(t, cmd.Process.Kill())
		_ = cmd.Wait()
	}
	p := start(t, file)
	done := make(chan output)
	for range 2 {
		go func() { done <- run(t, "", append(copying, "100000")...) }()
	}
	for range 2 {
		(<-done).ok(t, ` events of "orders" to "orders.billing"; `)
	}
	await(t, "retention removes, and the dispatcher copies", func() bool { return o.count(t, `topic = 'orders' and status = 'delivered'`) == n-100 })
	need.Want(t, 0, "exit code %d, want %d", p.stop(t))
	run(t, "", append(copying, "500")...).ok(t, fmt.Sprintf(`copied 0 of %d events of "orders" to "orders.billing"; %[1]d were there already, and 0 were removed meanwhile`, n-100))
	need.Want(t, fmt.Sprint(n-100, n-100), "%s copies and originals, want %s", o.text(t, `select count(*) || ' ' || count(distinct headers ->> 'originalid') from outbox.outbox_events where topic = 'orders.billing'`))
	need.Want(t, "0", "%s late copies are out of order, want %s", o.text(t, `select count(*) from (select o.seq < lag(o.seq) over (order by e.seq) as inverted from outbox.outbox_events as e
		join outbox.outbox_events as o on o.id::text = e.headers ->> 'originalid' where o.seq <= `+strconv.Itoa(n-10)+`) as e where inverted`))
	original := o.text(t, `select headers ->> 'originalid' from outbox.outbox_events where topic = 'orders.billing' order by seq limit 1`)
	run(t, "", "events", "show", "-f", file, original).ok(t, "Copy:", "orders.billing ")
	o.exec(t, `insert into outbox.outbox_workers (worker, dispatcher, namespace, topics, copies) values (gen_random_uuid(), 'billing', 'shop', '{orders.billing}', '{orders}')`)
	run(t, "", "check", "-f", file).ended(t, 1, `FAIL sink: the topics are copied in a circle: this one copies to "orders.billing", dispatcher "billing" from there to "orders", which it copies itself`)
	run(t, "", append(copying[:8:8], "0s")...).ended(t, 1, "--since is not above 0")
	run(t, "", "copy", "-f", file, "--from", "orders", "--to", "orders", "--since", "1h").ended(t, 1, "are not two topics")
}
