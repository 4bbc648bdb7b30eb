package consumer_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher/consumer"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

const day = 24 * time.Hour

// The three scenarios, and a retention of at least the outbox's and of the age of replays.
//
// CONTRACT: C-80
// REQUIREMENT: RULE-010-011
func TestPolicyIsChecked(t *testing.T) {
	for _, test := range []struct {
		name   string
		policy consumer.Policy
		want   string // a part of the error, or none
	}{
		{"standard", consumer.Policy{Replay: day}, ""},
		{"standard, too short", consumer.Policy{Retention: 6 * day, Replay: day}, "this kind of data needs 168h"},
		{"financial", consumer.Policy{Retention: 30 * day, Minimum: consumer.Financial, Replay: day}, ""},
		{"financial, too short", consumer.Policy{Retention: 29 * day, Minimum: consumer.Financial, Replay: day}, "needs 720h"},
		{"shorter than the outbox's", consumer.Policy{Retention: 8 * day, Outbox: 9 * day, Replay: day}, "lower retention.delivered"},
		{"as long as the outbox's", consumer.Policy{Retention: 9 * day, Outbox: 9 * day, Replay: day}, ""},
		{"shorter than replays", consumer.Policy{Retention: 8 * day, Replay: 60 * day}, "events may come again for 1440h"},
		{"replays not said", consumer.Policy{Retention: 8 * day}, "set Policy.Replay"},
	} {
		err := test.policy.Check()
		if test.want == "" && err != nil || test.want != "" && (!errors.Is(err, consumer.ErrInvalid) || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}

// A sweep removes a consumer's own old records, and a refused policy none. It ends while records become due, of which there is
// one more after each transaction here.
//
// CONTRACT: C-80
// REQUIREMENT: RULE-010-011
func TestSweepRemovesOnlyTheConsumersOldRecords(t *testing.T) {
	each(t, func(t *testing.T, pool pgtest.DB, newSide func(consumer.Options) side) {
		c := newSide(consumer.Options{})
		fill := func(n int, id, age string) {
			pgtest.Exec(pool, "insert into processed_events (tracking_id, consumer_id, processed_at) select gen_random_uuid(), $2, now() - $3::interval from generate_series(1, $1)", n, id, age)
		}
		fill(4100, "billing", "31 days") // more than two transactions take
		fill(3, "billing", "29 days")
		fill(5, "mail", "90 days")
		pgtest.Exec(pool, "insert into event_tokens select gen_random_uuid(), 'billing', 1, now() - interval '31 days'")
		if _, err := c.sweep(consumer.Policy{Retention: 30 * day, Replay: 31 * day}); !errors.Is(err, consumer.ErrInvalid) || !strings.Contains(err.Error(), "consumer billing") {
			t.Errorf("a policy that is too short: %v", err)
		}
		pgtest.Exec(pool, `create sequence sweeps maxvalue 9;
			create function due() returns trigger language plpgsql as $$ begin
				insert into processed_events values (gen_random_uuid(), 'billing', now() - interval '31 days', nextval('sweeps'));
				return null;
			end $$;
			create trigger due after delete on processed_events for each statement execute function due()`)
		removed, err := c.sweep(consumer.Policy{Retention: 30 * day, Minimum: consumer.Financial, Replay: 30 * day})
		check(t, err)
		if left := pgtest.Value[int](pool, "select count(*) from processed_events"); removed != 4102 || left != 9 {
			t.Errorf("%d removed and %d left, want 4102 and 9", removed, left)
		}
		if n := pgtest.Value[int](pool, "select count(*) from event_tokens"); n != 0 {
			t.Errorf("%d old tokens are left", n)
		}
	})
}

// Under a legal hold nothing goes until it is released.
//
// CONTRACT: C-80
// REQUIREMENT: RULE-010-011
func TestLegalHold(t *testing.T) {
	each(t, func(t *testing.T, pool pgtest.DB, newSide func(consumer.Options) side) {
		billing, mail := newSide(consumer.Options{}), newSide(consumer.Options{ID: "mail"})
		sweep := func(c side, want int64) {
			t.Helper()
			pgtest.Exec(pool, "insert into processed_events select gen_random_uuid(), id, now() - interval '90 days' from unnest(array['billing', 'mail']) as id")
			removed, err := c.sweep(consumer.Policy{Replay: day})
			if err != nil || removed != want {
				t.Errorf("%d removed, %v; want %d", removed, err, want)
			}
		}
		check(t, billing.hold("case 12", "audit", false))
		check(t, billing.hold("case 12", "audit of 2026", false))
		check(t, mail.hold("freeze", "incident", true))
		for name, err := range map[string]error{
			"another consumer's": mail.hold("case 12", "mine", false), "one's as everyone's": billing.hold("case 12", "all", true),
		} {
			if !errors.Is(err, consumer.ErrInvalid) {
				t.Errorf("the name of a hold that is %s: %v", name, err)
			}
		}
		sweep(billing, 0)
		sweep(mail, 0)
		check(t, billing.release("freeze"))
		sweep(billing, 0)
		sweep(mail, 4)
		check(t, billing.release("case 12"))
		sweep(billing, 5)
		for name, err := range map[string]error{
			"released twice": billing.release("case 12"), "a name that was used": billing.hold("case 12", "again", false), "unknown": mail.release("case 13"),
		} {
			if !errors.Is(err, consumer.ErrInvalid) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if n := pgtest.Value[int](pool, "select count(*) from processed_event_holds where released_at is not null and reason <> 'audit'"); n != 2 {
			t.Errorf("%d of 2 holds are kept with what they were", n)
		}
	})
}
