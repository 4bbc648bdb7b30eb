package journal_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/journal"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/retention"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// outbox is a database whose journal is on.
type outbox struct {
	*testing.T
	*pgxpool.Pool               // of the owner
	reads         *pgxpool.Pool // with a dispatcher's rights and no other
	role          string
}

func newOutbox(t *testing.T) outbox {
	t.Helper()
	t.Parallel()
	o := outbox{T: t, Pool: pgtest.Pool(t, pgtest.Migrated(t))}
	o.reads = pgtest.Pool(t, pgtest.Login(t, o.Pool, migrations.Dispatcher))
	o.role = o.reads.Config().ConnConfig.User
	o.enqueue(1) // from before
	pgtest.Exec(o, `select outbox.outbox_journal_set(true)`)
	return o
}

func (o outbox) enqueue(n int) {
	o.Helper()
	pgtest.Exec(o, `select outbox.enqueue('shop', 'orders', '{}') from generate_series(1, $1::integer)`, n)
}

// check compares, with a dispatcher's rights.
func (o outbox) check(opts journal.Options) journal.Report {
	o.Helper()
	report, err := journal.Check(o.Context(), o.reads, opts)
	need.OK(o, err)
	return report
}

// want compares the kinds of differences, in their order.
func (o outbox) want(kinds ...journal.Kind) journal.Report {
	o.Helper()
	report := o.check(journal.Options{})
	var got []journal.Kind
	for _, d := range report.Differences {
		got = append(got, d.Kind)
	}
	if !slices.Equal(got, kinds) || report.Found != int64(len(kinds)) {
		o.Errorf("found %d differences, %v, want %v: %+v", report.Found, got, kinds, report.Differences)
	}
	return report
}

// store is what a dispatcher uses.
func (o outbox) store(deletes bool) *pgstore.Store {
	return pgstore.New(o.reads, pgstore.Options{Namespace: "shop", DeleteDelivered: deletes})
}

// claim takes all that is due.
func (o outbox) claim(store *pgstore.Store, maxAttempts int, lease time.Duration) dispatcher.Claimed {
	o.Helper()
	claimed, err := store.Claim(o.Context(), dispatcher.ClaimRequest{Shares: []dispatcher.Share{{Topic: "orders", Limit: 100}}, Lease: lease, MaxAttempts: maxAttempts})
	need.OK(o, err)
	return claimed
}

func (o outbox) done(lost []dispatcher.Lease, err error) {
	o.Helper()
	if err != nil || len(lost) > 0 {
		o.Fatalf("lost %v, %v", lost, err)
	}
}

func leases(events []*dispatcher.Event) (out []dispatcher.Lease) {
	for _, e := range events {
		out = append(out, e.Lease())
	}
	return out
}

// discard has a dead letter discarded by an operation. $1 the event.
const discard = `select outbox.outbox_replay_begin(gen_random_uuid(), 'shop', 'discard', 'CHG', 'bob', '{}', 1, 0, 50, array(select id from outbox.outbox_dead_letters where event_id = $1))`

// Each change that engines, replays and retention make has a record with its author, and none is a difference.
//
// CONTRACT: C-61
// REQUIREMENT: STORAGE-8, STORAGE-22, STORAGE-23, STORAGE-29
func TestEveryTransitionIsRecorded(t *testing.T) {
	o := newOutbox(t)
	ctx, store := t.Context(), o.store(false)
	o.enqueue(6)
	all := o.claim(store, 3, time.Minute).Events
	o.done(store.Extend(ctx, leases(all[1:2]), 2*time.Minute))
	o.done(store.Ack(ctx, leases(all[:2])))
	pgtest.Exec(o, `select outbox.enqueue('shop', 'orders', '{}', p_dedupe_key => 'back', p_delay => '1 hour')`)
	pgtest.Want(o, "withdrawn", "the withdrawal says %s", `select result from outbox.withdraw('shop', 'orders', 'back')`)
	pgtest.Want(o, "withdraw pending withdrawn 0", "the journal has %s, want %s", `select concat_ws(' ', operation, before, after, lease) from outbox.outbox_journal order by lsn desc limit 1`)
	pgtest.Exec(o, `select outbox.enqueue('shop', 'large', '{}', p_dedupe_key => 'large')`)
	got, err := store.Claim(ctx, dispatcher.ClaimRequest{Shares: []dispatcher.Share{{Topic: "large", Limit: 1}}, Lease: time.Minute, MaxAttempts: 3, MaxRowBytes: 1})
	need.Must(t, err == nil && len(got.Dead) == 1, "claimed %+v, %v", got, err)
	pgtest.Want(o, "withdrawn", "the withdrawal of a dead event says %s", `select result from outbox.withdraw('shop', 'large', 'large')`)
	o.want()
	o.done(store.Nack(ctx, []dispatcher.Failure{{Lease: all[2].Lease(), Error: "503"}, {Lease: all[3].Lease(), Error: "422", Reason: dispatcher.ReasonPermanentFailure},
		{Lease: all[4].Lease(), Error: "422", Reason: dispatcher.ReasonPermanentFailure}}))
	o.done(store.Release(ctx, []dispatcher.Return{{Lease: all[5].Lease()}}))
	pgtest.Exec(o, discard, all[4].ID)
	id := uuid.New()
	pgtest.Exec(o, `select outbox.outbox_replay_begin($1, 'shop', 'replay', 'CHG', 'alice', '{}', 1, 0, 50, array(select id from outbox.outbox_dead_letters where resolution is null))`, id)
	pgtest.Exec(o, `select outbox.outbox_replay_step($1, 10)`, id)
	o.want()

	// Leases end; a row without an attempt left becomes dead; rows that are not kept are removed at their ack.
	again := o.claim(store, 3, -time.Second)
	if len(again.Events) != 3 {
		t.Fatalf("claimed %d events again, want 3", len(again.Events))
	}
	begun := again.Events[slices.IndexFunc(again.Events, func(e *dispatcher.Event) bool { return e.ID == all[2].ID })]
	pgtest.Exec(o, fmt.Sprintf(`do $$ begin
		set local session_replication_role = replica; -- the journal has nothing of the deliveries before the last one
		update outbox.outbox_events set suspicion = 4 where id = '%s';
	end $$`, begun.ID))
	o.done(store.Begin(ctx, []dispatcher.Lease{begun.Lease()}))
	for _, e := range again.Events { // the begin may be under way, or taken back already
		if e.ID == all[5].ID {
			need.OK(t, need.Err(store.Outlive(ctx, []dispatcher.Lease{e.Lease()})))
			need.OK(t, need.Err(store.Outlive(ctx, []dispatcher.Lease{e.Lease()})))
		}
	}
	deletes := o.store(true)
	last := o.claim(deletes, 2, time.Minute)
	o.done(deletes.Ack(ctx, leases(last.Events)))
	sweeper := retention.New(o.reads, retention.Options{Delivered: time.Nanosecond, DeadResolved: time.Nanosecond, DeadUnresolved: time.Nanosecond})
	if ran, err := sweeper.Sweep(ctx); err != nil || !ran {
		t.Fatalf("swept %v, %v", ran, err)
	}
	report := o.want()
	need.That(t, report.Events == 9 && report.Records == pgtest.Value[int64](o, `select count(*) from outbox.outbox_journal where event_id is not null`),
		"checked %d events and %d records", report.Events, report.Records)
	const story = `select string_agg(operation || coalesce(' ' || reason, ''), ', ' order by lsn) from outbox.outbox_journal where event_id = $1`
	for i, want := range []string{
		"claim, ack, delete", // it was inserted before the journal was on
		"insert, claim, extend, ack, delete",
		"insert, claim, nack, claim, begin, dead processing_timeout, delete, resolve expired",
		"insert, claim, dead permanent_failure, replay, resolve replayed, claim, claim, ack, forget retention",
		"insert, claim, dead permanent_failure, resolve discarded, delete, forget retention",
		"insert, claim, release, claim, claim, ack",
	} {
		need.Want(t, want, "event %d: %s, want %s", pgtest.Value[string](o, story, all[i].ID), i)
	}
	pgtest.Want(o, 0, "%d claims do not say who, with which lease, and in which transaction", `select count(*) from outbox.outbox_journal where operation = 'claim' and (worker is null or login <> $1 or lease <= lease_before or xid is null)`, o.role)
	need.That(t, pgtest.Value[int](o, `select count(*) from information_schema.columns where table_schema = 'outbox' and table_name = 'outbox_journal' and data_type like 'json%'`) == 0, "the journal has a payload")
}

// Each kind of change by hand is found.
//
// CONTRACT: C-61
// REQUIREMENT: STORAGE-71
func TestChangesByHandAreFound(t *testing.T) {
	for name, c := range map[string]struct {
		change string // of the event's row, $1
		want   []journal.Kind
	}{
		"delivered, past the journal":       {`set local session_replication_role = replica; update outbox.outbox_events set status = 'delivered' where id = '$1'`, []journal.Kind{journal.StateDiffers}},
		"attempts, past the journal":        {`set local session_replication_role = replica; update outbox.outbox_events set attempts = 7 where id = '$1'`, []journal.Kind{journal.StateDiffers}},
		"removed, past the journal":         {`set local session_replication_role = replica; delete from outbox.outbox_events where id = '$1'`, []journal.Kind{journal.StateDiffers}},
		"another id":                        {`update outbox.outbox_events set id = gen_random_uuid(), updated_at = now() where id = '$1'`, []journal.Kind{journal.Illegal, journal.StateDiffers, journal.NotRecorded}},
		"delivered":                         {`update outbox.outbox_events set status = 'delivered' where id = '$1'`, []journal.Kind{journal.Illegal}},
		"the payload":                       {`update outbox.outbox_events set payload = '1' where id = '$1'`, []journal.Kind{journal.Illegal}},
		"removed":                           {`delete from outbox.outbox_events where id = '$1'`, []journal.Kind{journal.Illegal}},
		"a new row, past the journal":       {`set local session_replication_role = replica; select outbox.enqueue('shop', 'orders', '{}')`, []journal.Kind{journal.NotRecorded}},
		"a claim past the journal":          {`set local session_replication_role = replica; update outbox.outbox_events set status = 'processing', lease = 9, attempts = 1, locked_by = id, locked_until = now() where id = '$1'; set local session_replication_role = origin; update outbox.outbox_events set status = 'delivered', locked_by = null, locked_until = null where id = '$1'`, []journal.Kind{journal.Gap}},
		"a token that falls":                {`update outbox.outbox_events set lease = 9 where id = '$1'; update outbox.outbox_events set lease = 3 where id = '$1'`, []journal.Kind{journal.Illegal, journal.Illegal, journal.TokenFell}},
		"another worker, past the journal":  {`update outbox.outbox_events set status = 'processing', lease = 9, attempts = 1, locked_by = id, locked_until = now() where id = '$1'; set local session_replication_role = replica; update outbox.outbox_events set locked_by = gen_random_uuid() where id = '$1'`, []journal.Kind{journal.StateDiffers}},
		"a record removed":                  {`delete from outbox.outbox_journal where event_id = '$1'`, []journal.Kind{journal.NotRecorded}},
		"a record removed, and then others": {`delete from outbox.outbox_journal where event_id = '$1'; update outbox.outbox_events set status = 'processing', lease = 9, attempts = 1, locked_by = id, locked_until = now() where id = '$1'`, []journal.Kind{journal.Gap}},
		"all removed":                       {`truncate outbox.outbox_events`, []journal.Kind{journal.Truncated, journal.StateDiffers}},
		"a trigger disabled":                {`alter table outbox.outbox_events disable trigger outbox_journal_changed; update outbox.outbox_events set status = 'delivered', updated_at = now() where id = '$1'`, []journal.Kind{journal.TriggerMissing, journal.StateDiffers}},
	} {
		t.Run(name, func(t *testing.T) {
			o := newOutbox(t)
			o.enqueue(1)
			o.want()
			id := pgtest.Value[string](o, `select id::text from outbox.outbox_events order by seq desc limit 1`)
			pgtest.Exec(o, "begin; "+strings.ReplaceAll(c.change, "$1", id)+"; commit")
			report := o.want(c.want...)
			for _, d := range report.Differences {
				need.That(t, d.What != "" && (d.Kind != journal.Illegal || (d.Event == id && d.Login != "" && d.Transaction != "" && !d.At.IsZero())),
					"the difference does not say what, or of which event, and by whom: %+v", d)
			}
			if got := o.check(journal.Options{Namespace: "another"}); got.Found > 0 && !slices.Contains([]journal.Kind{journal.Truncated, journal.TriggerMissing}, got.Differences[0].Kind) {
				t.Errorf("of another namespace: %+v", got.Differences)
			}
		})
	}
}

// A report has a bounded number of differences, and counts all.
func TestReportedDifferencesAreBounded(t *testing.T) {
	o := newOutbox(t)
	o.enqueue(20)
	pgtest.Exec(o, `update outbox.outbox_events set payload = '1'`)
	report := o.check(journal.Options{Limit: 5})
	need.That(t, report.Found == 21 && len(report.Differences) == 5, "reported %d of %d differences, want 5 of 21", len(report.Differences), report.Found)
	got := o.check(journal.Options{Since: time.Nanosecond})
	need.That(t, got.Found == 0 && got.Events == 0, "of the last moment: %+v", got)
	pgtest.Exec(o, `select outbox.outbox_journal_set(false)`)
	if _, err := journal.Check(t.Context(), o.reads, journal.Options{}); !errors.Is(err, journal.ErrOff) || !strings.Contains(err.Error(), "migrate up") {
		t.Errorf("off: %v", err)
	}
	_, err := journal.Check(t.Context(), o.reads, journal.Options{Schema: "none"})
	need.That(t, err != nil && strings.Contains(err.Error(), "run `dispatcher migrate up`"), "no schema: %v", err)
}

// Check works in every mode of the driver, also in the one for PgBouncer, and on a connection as well as on a pool.
func TestCheckWorksInEveryModeOfTheDriver(t *testing.T) {
	o := newOutbox(t)
	o.enqueue(3)
	pgtest.Exec(o, `update outbox.outbox_events set payload = '1' where seq = 2`)
	pgtest.EachMode(t, func(t *testing.T, mode pgtest.Mode) {
		conn, err := pgx.Connect(t.Context(), mode.In(o.reads.Config().ConnString()))
		need.OK(t, err)
		report, err := journal.Check(t.Context(), conn, journal.Options{Namespace: "shop", Topics: []string{"orders"}})
		need.That(t, err == nil && report.Found == 1 && report.Records == 5 && report.Differences[0].Kind == journal.Illegal, "%+v, %v", report, err)
		need.Want(t, nil, "%v", conn.Close(t.Context()))
	})
}

// A bounded check ends after the page in which its time is over, and the next one continues behind it.
func TestABoundedCheckEndsInTime(t *testing.T) {
	o := newOutbox(t)
	o.enqueue(1200)
	opts, parts := journal.Options{MaxRecords: 50_000, MaxTime: time.Nanosecond}, []int64{}
	for more := true; more; {
		report := o.check(opts)
		opts.From, more, parts = report.Next, report.Partial, append(parts, report.Records)
	}
	want := []int64{500, 500, 200}
	need.WantAll(t, want, "checks of no time read %v records, want %v", parts)
}

// 100,000 events with 300,000 records are compared in pages, and one changed row is found among them. No statement reads
// more than its page, however little the planner knows.
func TestCheckOfManyRowsReadsPages(t *testing.T) {
	if testing.Short() {
		t.Skip("it fills a table with 100,000 events")
	}
	o := newOutbox(t)
	const n = 100_000
	pgtest.Exec(o, `insert into outbox.outbox_events (id, namespace, topic, payload) select md5(n::text)::uuid, 'shop', 'orders', '{}' from generate_series(1, $1::integer) as n`, n)
	pgtest.Exec(o, `update outbox.outbox_events set status = 'processing', lease = 1, attempts = attempts + 1, locked_by = id, locked_until = now(), updated_at = now()`)
	pgtest.Exec(o, `update outbox.outbox_events set status = 'delivered', locked_by = null, locked_until = null, updated_at = now()`)
	pgtest.Exec(o, `begin; set local session_replication_role = replica; update outbox.outbox_events set status = 'dead', dead_reason = 'poison_message' where id = md5('77')::uuid; commit`)
	began := time.Now()
	report := o.want(journal.StateDiffers)
	t.Logf("%d records of %d events in %s", report.Records, report.Events, time.Since(began).Round(time.Millisecond))
	need.That(t, report.Events == n+1 && report.Records == 3*n+2 && !report.Partial, "checked %d events and %d records", report.Events, report.Records)
	want := fmt.Sprint(uuid.UUID(pgtest.Value[[16]byte](o, `select md5('77')::uuid`)))
	need.That(t, report.Differences[0].Event == want, "found %+v, want event %s", report.Differences, want)
	watchAll(o, 3*n+2)
	watchQuiet(o)
}

// watchQuiet expects a difference of a namespace that has one event behind all of another to be found, by looks that each read a
// part of those.
func watchQuiet(o outbox) {
	o.Helper()
	pgtest.Exec(o, `insert into outbox.outbox_events (id, namespace, topic, payload) values ('ffffffff-ffff-ffff-ffff-fffffffffffe', 'quiet', 'orders', '{}')`)
	pgtest.Exec(o, `begin; set local session_replication_role = replica; update outbox.outbox_events set status = 'delivered' where namespace = 'quiet'; commit`)
	if report := o.check(journal.Options{Namespace: "quiet"}); report.Found != 1 || report.Events != 1 || report.Records != 1 {
		o.Errorf("of the quiet namespace: %+v, want one difference of one event", report)
	}
	watch, looks := journal.NewWatch(o.reads, journal.Options{Namespace: "quiet"}), 0
	for found := int64(0); found == 0; looks++ {
		state, err := watch.Look(o.Context())
		if err != nil || looks > 20 {
			o.Fatalf("after %d looks %+v, %v", looks, state, err)
		}
		found = state.Found
	}
	if looks < 4 {
		o.Errorf("%d looks read the records of all namespaces", looks)
	}
}

// watchAll expects the one difference found by looks that each read a part, and reported until the whole was seen without.
func watchAll(o outbox, records int64) {
	o.Helper()
	watch := journal.NewWatch(o.reads, journal.Options{Namespace: "shop"})
	look := func() journal.State {
		o.Helper()
		state, err := watch.Look(o.Context())
		if err != nil || !state.On || state.At.IsZero() || state.Records > 70_000 {
			o.Fatalf("looked %+v, %v; want at most 70000 records", state, err)
		}
		return state
	}
	pass := func(want int64) (looks int) {
		o.Helper()
		var seen int64
		for seen < records {
			state := look()
			seen += state.Records
			if looks++; seen >= records && (state.Found != want || len(state.Examples) != int(want)) {
				o.Errorf("after a whole pass: %+v, want %d", state, want)
			}
		}
		need.Want(o, records, "a pass read %d records, want %d: each once", seen)
		return looks
	}
	if looks := pass(1); looks < 4 {
		o.Errorf("%d looks read it all", looks)
	}
	pgtest.Exec(o, `begin; set local session_replication_role = replica; update outbox.outbox_events set status = 'delivered', dead_reason = null where id = md5('77')::uuid; commit`)
	if state := look(); state.Found != 1 {
		o.Errorf("before it looked again: %+v, want the difference of the last pass", state)
	}
	for range 20 {
		if look().Found == 0 {
			return
		}
	}
	o.Error("it reports a difference that is gone")
}

// Changes by hand that look like an engine's are found, whichever login made them: those of the review of dead letters, and
// some more. A statement is run as its login would, with triggers; "past" is without.
//
// CONTRACT: C-61
// REQUIREMENT: STORAGE-71
func TestChangesThatLookLikeAnEnginesAreFound(t *testing.T) {
	const (
		replay  = `update outbox.outbox_events set status = 'pending', attempts = 0, dead_reason = null, updated_at = now()`
		resolve = `update outbox.outbox_dead_letters set resolution = 'replayed', resolved_at = now(), resolved_by = 'ada' where event_id = '$dead'; `
		mark    = `select set_config('outbox.removal', 'retention', true); `
		copied  = `create temp table copied (like outbox.outbox_events); insert into copied select * from outbox.outbox_events where id = '$delivered'; `
		again   = `alter table copied drop column live, drop column seq; insert into outbox.outbox_events (id, created_at, size_bytes, namespace, topic, headers, payload)
			select id, created_at, size_bytes, namespace, topic, headers, '{"n": 2}' from copied; `
		past = `set local session_replication_role = replica; `
	)
	for name, c := range map[string]struct {
		dispatcher bool // the login is a dispatcher's; else the owner
		change     string
		want       string // kinds, and a part of what is said
	}{
		"replayed":                            {true, replay + ` where id = '$dead'`, "Illegal pending again without an operation"},
		"replayed, with its dead letter":      {true, resolve + replay + ` where id = '$dead'`, "Illegal resolve replayed of its dead letter"},
		"replayed with another payload":       {true, replay + `, payload = '2' where id = '$dead'`, "Illegal its payload;Illegal pending again"},
		"replayed with another topic":         {true, replay + `, topic = 'refunds' where id = '$dead'`, "Illegal its topic;Illegal pending again"},
		"extended with other content":         {true, `update outbox.outbox_events set locked_until = locked_until + interval '1s', payload = '2', headers = '{"a": 1}' where id = '$leased'`, "Illegal its headers, payload"},
		"extended with another tenant":        {true, `update outbox.outbox_events set locked_until = locked_until + interval '1s', tenant_id = id where id = '$leased'`, "Illegal its tenant_id"},
		"another key":                         {true, `update outbox.outbox_events set aggregate_id = 'b', key_hash = 7 where id = '$leased'`, "Illegal its aggregate_id, key_hash"},
		"another dedupe key":                  {true, `update outbox.outbox_events set dedupe_key = 'b' where id = '$delivered'`, "Illegal its dedupe_key"},
		"more attempts allowed":               {true, `update outbox.outbox_events set max_attempts = 1 where id = '$leased'`, "Illegal change, from processing"},
		"a leased one removed":                {true, `delete from outbox.outbox_events where id = '$leased'`, "Illegal change, from processing"},
		"a leased one removed as retention":   {true, mark + `delete from outbox.outbox_events where id = '$leased'`, "Illegal change, from processing"},
		"a delivered one removed":             {true, `delete from outbox.outbox_events where id = '$delivered'`, "Illegal change, from delivered"},
		"a dead one removed":                  {true, `delete from outbox.outbox_dead_letters where event_id = '$dead'; delete from outbox.outbox_events where id = '$dead'`, "Illegal forget of its dead letter;Illegal change, from dead"},
		"a dead one removed as retention":     {true, `delete from outbox.outbox_dead_letters where event_id = '$dead'; ` + mark + `delete from outbox.outbox_events where id = '$dead'`, "Illegal forget of its dead letter;Illegal its dead letter is open"},
		"sent twice":                          {false, copied + mark + `delete from outbox.outbox_events where id = '$delivered'; ` + again, "Illegal inserted again"},
		"sent twice, removed past":            {false, copied + past + `delete from outbox.outbox_events where id = '$delivered'; set local session_replication_role = origin; ` + again, "Gap the previous record left it delivered"},
		"another payload, past":               {false, past + `update outbox.outbox_events set payload = '2' where id = '$delivered'`, "StateDiffers its payload"},
		"another topic, past":                 {false, past + `update outbox.outbox_events set topic = 'refunds' where id = '$leased'`, "StateDiffers its payload, headers, topic or keys"},
		"another payload, past, and one more": {false, `update outbox.outbox_events set payload = '2' where id = '$leased'; ` + past + `update outbox.outbox_events set payload = '3' where id = '$leased'`, "Illegal its payload;StateDiffers its payload"},
		"payload alone":                       {false, `update outbox.outbox_events set payload = '2' where id = '$delivered'`, "Illegal its payload"},
		"delivered to pending":                {true, `update outbox.outbox_events set status = 'pending' where id = '$delivered'`, "Illegal change, from delivered"},
		"another time of creation":            {true, `update outbox.outbox_events set created_at = now() - interval '1 day' where id = '$leased'`, "Illegal its created_at"},
		"the same again":                      {true, `update outbox.outbox_events set payload = payload, topic = topic where id = '$delivered'`, "Illegal change, from delivered"},
		"reopened, and removed":               {false, `update outbox.outbox_dead_letters set resolution = null, resolution_reason = null, resolved_at = null, resolved_by = null where event_id = '$discarded'; ` + mark + `delete from outbox.outbox_events where id = '$discarded'`, "Illegal reopen discarded of its dead letter: neither an operation nor retention did it;Illegal its dead letter is open"},
		"dead, and no dead letter":            {true, `update outbox.outbox_events set status = 'dead', dead_reason = 'permanent_failure', locked_by = null, locked_until = null where id = '$leased'`, "StateDiffers no dead letter says so"},
		"dead, and its dead letter made discarded": {true, `update outbox.outbox_events set status = 'dead', dead_reason = 'permanent_failure', locked_by = null, locked_until = null where id = '$leased';
			insert into outbox.outbox_dead_letters (event_id, namespace, topic, reason, attempts, resolution, resolved_at, resolved_by) values ('$leased', 'shop', 'orders', 'permanent_failure', 1, 'discarded', now(), 'ada')`, "StateDiffers no dead letter says so"},
		"a dead letter removed":          {true, `delete from outbox.outbox_dead_letters where event_id = '$dead'`, "Illegal forget of its dead letter;StateDiffers no dead letter says so"},
		"one removed as retention":       {true, mark + `delete from outbox.outbox_dead_letters where event_id = '$dead'`, "Illegal forget of its dead letter;StateDiffers no dead letter says so"},
		"a dead letter of another topic": {false, `update outbox.outbox_dead_letters set topic = 'refunds' where event_id = '$dead'`, "StateDiffers no dead letter says so"},
		"discarded":                      {true, `update outbox.outbox_dead_letters set resolution = 'discarded', resolved_at = now(), resolved_by = 'ada' where event_id = '$dead'`, "Illegal resolve discarded of its dead letter: neither an operation"},
		"discarded, as of an operation":  {false, `update outbox.outbox_dead_letters set resolution = 'discarded', resolved_at = now(), resolved_by = 'ada', replay_id = (select id from outbox.outbox_replays) where event_id = '$dead'`, "StateDiffers counts 1 dead letters and 0 delivered, and the journal has 2 and 0"},
		"replayed, as of a discard":      {true, strings.ReplaceAll(resolve, "$dead", "$discarded"), "Illegal resolve replayed of its dead letter: neither an operation;StateDiffers no dead letter says so"},
		"expired":                        {true, `update outbox.outbox_dead_letters set resolution = 'expired', resolved_at = now(), resolved_by = 'retention' where event_id = '$dead'`, "StateDiffers no dead letter says so"},
		"put off for ever":               {true, `update outbox.outbox_events set status = 'pending', next_attempt_at = now() + interval '50 years', locked_by = null, locked_until = null where id = '$leased'`, "StateDiffers put off for more than"},
		"leased for ever":                {true, `update outbox.outbox_events set locked_until = 'infinity' where id = '$leased'`, "StateDiffers leased for more than 24h"},
		"claimed and acknowledged at once": {true, `update outbox.outbox_events set status = 'pending', attempts = attempts - 1, locked_by = null, locked_until = null where id = '$leased';
			update outbox.outbox_events set status = 'processing', attempts = attempts + 1, lease = nextval('outbox.outbox_leases'), locked_by = id, locked_until = now() + interval '30s' where id = '$leased';
			update outbox.outbox_events set status = 'delivered', locked_by = null, locked_until = null where id = '$leased'`, "Illegal claimed in the same transaction"},
		"expired before its time":             {true, `update outbox.outbox_events set status = 'expired', locked_by = null, locked_until = null, updated_at = now() where id = '$leased'`, "Illegal change, from processing"},
		"withdrawn":                           {true, `update outbox.outbox_events set status = 'withdrawn', locked_by = null, locked_until = null, updated_at = now() where id = '$leased'`, "Illegal change, from processing"},
		"withdrawn, in the words of withdraw": {true, `select set_config('outbox.change', 'withdraw', true); update outbox.outbox_events set status = 'withdrawn', dead_reason = null, updated_at = now() where id = '$discarded'`, "Illegal a worker had claimed it before"},
		"withdrawn, and pending again":        {false, `select outbox.enqueue('shop', 'orders', '{}', p_dedupe_key => 'a'); select outbox.withdraw('shop', 'orders', 'a'); update outbox.outbox_events set status = 'pending' where dedupe_key = 'a'`, "Illegal change, from withdrawn"},
		"resolved as withdrawn":               {true, strings.ReplaceAll(resolve, "replayed", "withdrawn"), "Illegal resolved as withdrawn, and the event was not;StateDiffers no dead letter says so"},
		"an operation's counts":               {false, `update outbox.outbox_replays set delivered = 1000000`, "StateDiffers counts 1 dead letters and 1000000 delivered, and the journal has 1 and 0"},
		"discarded, and removed by retention": {true, mark + `delete from outbox.outbox_events where id = '$discarded'`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			o := newOutbox(t)
			o.enqueue(4)
			store := o.store(false)
			events := o.claim(store, 3, time.Minute).Events[1:] // without the one from before the journal
			dead := []dispatcher.Failure{
				{Lease: events[0].Lease(), Error: "422", Reason: dispatcher.ReasonPermanentFailure},
				{Lease: events[3].Lease(), Error: "422", Reason: dispatcher.ReasonPermanentFailure},
			}
			o.done(store.Nack(t.Context(), dead))
			o.done(store.Ack(t.Context(), leases(events[2:3])))
			ids := strings.NewReplacer("$dead", events[0].ID.String(), "$leased", events[1].ID.String(), "$delivered", events[2].ID.String(), "$discarded", events[3].ID.String())
			pgtest.Exec(o, discard, events[3].ID)
			o.want()

			login := o
			if c.dispatcher {
				login.Pool = o.reads
			}
			pgtest.Exec(login, "begin; "+ids.Replace(c.change)+"; commit")
			report := o.check(journal.Options{})
			wants := strings.FieldsFunc(c.want, func(r rune) bool { return r == ';' })
			if len(report.Differences) != len(wants) {
				t.Fatalf("found %+v, want %q", report.Differences, wants)
			}
			for i, d := range report.Differences {
				kind, what, _ := strings.Cut(wants[i], " ")
				if string(d.Kind) != kind || !strings.Contains(d.What, what) || d.Login != login.Config().ConnConfig.User && kind == "Illegal" {
					t.Errorf("found %+v, want %s", d, wants[i])
				}
			}
		})
	}
}

// What a producer does in the transaction that inserts an event is not a difference: the numbers of a batch whose events are
// there already close up.
func TestABatchOfNumberedEventsDoesNotDiffer(t *testing.T) {
	o := newOutbox(t)
	for _, keys := range []string{"a,b", "a,c,b,d"} {
		pgtest.Exec(o, `select outbox.enqueue_batch(array_fill('shop'::text, array[cardinality($1::text[])]), array_fill('orders'::text, array[cardinality($1::text[])]),
			array_fill('{}'::jsonb, array[cardinality($1::text[])]), p_aggregate_ids => array_fill('a'::text, array[cardinality($1::text[])]),
			p_dedupe_keys => $1::text[], p_options => '{"aggregateSequence": true}')`, "{"+keys+"}")
	}
	need.That(t, pgtest.Value[int](o, `select count(*) from outbox.outbox_journal where operation = 'edit'`) != 0, "no number was changed, so this shows nothing")
	o.want()
}
