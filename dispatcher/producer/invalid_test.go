package producer_test

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher/producer"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// What PostgreSQL would refuse is refused before anything is sent: no row, and the transaction is
// still usable. CONTRACT: C-12, C-13, C-16
// REQUIREMENT: OVERVIEW-15
func TestInvalidEvents(t *testing.T) {
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
		if !errors.Is(err, producer.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %q, want ErrInvalid with %q", name, err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: the error shows the payload: %v", name, err)
		}
		_, err = p.EnqueueBatch(t.Context(), tx, []producer.Event{event(nil), event(c.change)})
		if !errors.Is(err, producer.ErrInvalid) || !strings.Contains(err.Error(), "event 2 of 2: ") {
			t.Errorf("%s: in a batch: error %v, want ErrInvalid that names event 2 of 2", name, err)
		}
	}
	if _, err := outbox.Enqueue(t.Context(), tx, event(payload(strings.Repeat("x", 99)))); err != nil {
		t.Errorf("a payload of exactly the limit, and a transaction still usable: %v", err)
	}
	check(t, tx.Commit(t.Context()))
	if n := pgtest.Value[int](pool, "select count(*) from outbox.outbox_events"); n != 1 {
		t.Errorf("%d rows, want only the valid one", n)
	}
}

// The tenant may be written in any of the forms that C-12 names. CONTRACT: C-12
//
// REQUIREMENT: MODKIT-4
func TestTenantKeys(t *testing.T) {
	pool := pgtest.Open(t, pgtest.Migrated(t))
	tenant := uuid.MustParse("0190b6c4-1f2e-7abc-8def-001122334455")
	bare := strings.ReplaceAll(tenant.String(), "-", "")
	for _, key := range []string{"", tenant.String() + "/", strings.ToUpper(tenant.String()) + "/1", bare + "/1/2", strings.ToUpper(bare) + "/1"} {
		e := event(func(e *producer.Event) { e.TenantID, e.DedupeKey = tenant, key })
		if _, err := producer.New(producer.Options{}).Enqueue(t.Context(), pool, e); err != nil {
			t.Errorf("key %q: %v", key, err)
		}
	}
	untenanted := event(func(e *producer.Event) { e.DedupeKey = "anything" })
	if _, err := producer.New(producer.Options{}).Enqueue(t.Context(), pool, untenanted); err != nil {
		t.Errorf("a key without a tenant: %v", err)
	}
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
		err := producer.CheckJSON(texts[i])
		if (err == nil) != holds {
			t.Errorf("%q: PostgreSQL holds it: %t; the check says: %v", texts[i], holds, err)
		}
		if holds {
			accepted++
		}
	}
	check(t, rows.Err())
	if accepted < 1000 {
		t.Errorf("only %d of the texts are JSON: the test tests too little", accepted)
	}
}
