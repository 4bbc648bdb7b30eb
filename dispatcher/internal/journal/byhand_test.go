package journal_test

import (
	"strings"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/journal"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

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
		"replayed, with its dead letter":      {true, resolve + replay + ` where id = '$dead'`, "Illegal no operation did it"},
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
		"a dead one removed":                  {true, `delete from outbox.outbox_dead_letters where event_id = '$dead'; delete from outbox.outbox_events where id = '$dead'`, "Illegal change, from dead"},
		"a dead one removed as retention":     {true, `delete from outbox.outbox_dead_letters where event_id = '$dead'; ` + mark + `delete from outbox.outbox_events where id = '$dead'`, "Illegal its dead letter is open"},
		"sent twice":                          {false, copied + mark + `delete from outbox.outbox_events where id = '$delivered'; ` + again, "Illegal inserted again"},
		"sent twice, removed past":            {false, copied + past + `delete from outbox.outbox_events where id = '$delivered'; set local session_replication_role = origin; ` + again, "Gap the previous record left it delivered"},
		"another payload, past":               {false, past + `update outbox.outbox_events set payload = '2' where id = '$delivered'`, "StateDiffers its payload"},
		"another topic, past":                 {false, past + `update outbox.outbox_events set topic = 'refunds' where id = '$leased'`, "StateDiffers its payload, headers, topic or keys"},
		"another payload, past, and one more": {false, `update outbox.outbox_events set payload = '2' where id = '$leased'; ` + past + `update outbox.outbox_events set payload = '3' where id = '$leased'`, "Illegal its payload;StateDiffers its payload"},
		"payload alone":                       {false, `update outbox.outbox_events set payload = '2' where id = '$delivered'`, "Illegal its payload"},
		"delivered to pending":                {true, `update outbox.outbox_events set status = 'pending' where id = '$delivered'`, "Illegal change, from delivered"},
		"another time of creation":            {true, `update outbox.outbox_events set created_at = now() - interval '1 day' where id = '$leased'`, "Illegal its created_at"},
		"the same again":                      {true, `update outbox.outbox_events set payload = payload, topic = topic where id = '$delivered'`, "Illegal change, from delivered"},
		"reopened, and removed":               {true, `update outbox.outbox_dead_letters set resolution = null, resolved_at = null, resolved_by = null where event_id = '$discarded'; ` + mark + `delete from outbox.outbox_events where id = '$discarded'`, "Illegal its dead letter is open"},
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
			pgtest.Exec(o, ids.Replace(`update outbox.outbox_dead_letters set resolution = 'discarded', resolved_at = now(), resolved_by = 'bob' where event_id = '$discarded'`))
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
	if edits := pgtest.Value[int](o, `select count(*) from outbox.outbox_journal where operation = 'edit'`); edits == 0 {
		t.Error("no number was changed, so this shows nothing")
	}
	o.want()
}
