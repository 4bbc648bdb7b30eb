package expression_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/expression"
)

// with returns an event with the payload, and what it is decoded.
func with(t testing.TB, payload string) (*dispatcher.Event, any) {
	t.Helper()
	e := event()
	e.Payload = []byte(payload)
	decoded, err := expression.Decode(e.Payload)
	if err != nil {
		t.Fatal(err)
	}
	return e, decoded
}

// outcome is that of a transformation. One that has no end fails the test, and is left behind.
func outcome(ctx context.Context, t *testing.T, text, payload string) error {
	t.Helper()
	x, err := expression.JSON(text)
	if err != nil {
		t.Fatalf("%.80s: %v", text, err)
	}
	e, decoded := with(t, payload)
	ended := make(chan error, 1)
	go func() {
		made, err := x.JSON(ctx, e, decoded)
		if err == nil {
			_, err = expression.Encode(made)
		}
		ended <- err
	}()
	select {
	case err := <-ended:
		return err
	case <-time.After(time.Minute):
		t.Fatalf("%.80s has no limit", text)
		return nil
	}
}

func orders(n int) string {
	return `{"items": [{"q":1,"p":12.5}` + strings.Repeat(`,{"q":1,"p":12.5}`, n-1) + `]}`
}

// The limit of work grows with the payload: one loop over all elements is always possible, and a loop over
// all elements for each element is not, whatever the nodes of the loops are.
//
// CONTRACT: C-35, C-72
func TestWorkIsLimitedByThePayload(t *testing.T) {
	for _, text := range []string{
		`payload.items.all(i, i.q > 0 && i.p > 0)`,
		`payload.items.map(i, i.q * i.p).size() == payload.items.size()`,
		`payload.items.filter(i, has(i.q) && i.p / 2 < 100.0).size() > 0`,
		`payload.items.exists(i, string(i.q).matches('^[a-z]+$')) || payload == payload`,
	} {
		if err := outcome(t.Context(), t, `{"r": `+text+`}`, orders(60_000)); err != nil {
			t.Errorf("%.60s: %v", text, err)
		}
	}
	wide := `{"l": [1` + strings.Repeat(",1", 4999) + `], "k": 1`
	for i := range 2000 {
		wide += fmt.Sprintf(`, "k%d": 1`, i)
	}
	wide += `}`
	for text, payload := range map[string]string{
		`payload.items.all(x, payload.items.all(y, x.q + y.q > 0.0))`:                          orders(10_000),
		`payload.items.all(x, payload.items.all(y, true))`:                                     orders(10_000),
		`payload.items.filter(x, payload.items.filter(y, false).size() > 0)`:                   orders(10_000),
		`payload.items.exists_one(x, payload.items.exists_one(y, has(y.z) && y.z))`:            orders(10_000),
		`payload.items.all(x, payload.items == payload.items)`:                                 orders(10_000),
		`payload.items.all(x, !({"a": x} in payload.items))`:                                   orders(10_000),
		`payload.items.all(x, payload.s.contains('b') || payload.s.size() > 0)`:                `{"items": [1` + strings.Repeat(",1", 999) + `], "s": "` + strings.Repeat("a", 100_000) + `"}`,
		`payload.s.matches('^(a?){500}$')`:                                                     `{"s": "` + strings.Repeat("a", 100_000) + `"}`,
		`payload.s.matches(payload.p)`:                                                         `{"s": "a", "p": "` + strings.Repeat("(x{1000})", 2000) + `"}`,
		`payload.s.indexOf(payload.s + 'b') > 0 || payload.s.indexOf(payload.t) > 0`:           `{"s": "` + strings.Repeat("a", 100_000) + `", "t": "` + strings.Repeat("a", 50_000) + `b"}`,
		`[[]]` + strings.Repeat(`.map(x, [x, x])`, 30) + `.map(x, "%s".format([x]))`:           `{}`,
		`[[]]` + strings.Repeat(`.map(x, [x, x])`, 30) + `.map(x, dyn(x) == [dyn(x)])`:         `{}`,
		`[[]]` + strings.Repeat(`.map(x, x + x)`, 30) + `.map(x, x.size())`:                    `{}`, // nothing at all
		`[[1]]` + strings.Repeat(`.map(x, x + x)`, 30) + `.map(x, x.size())`:                   `{}`,
		`payload.items.map(x, without(payload, ["items.*.z"]).size())`:                         orders(10_000),
		`[payload]` + strings.Repeat(`.map(x, {"a": x, "b": x})`, 30) + `.map(x, with({}, x))`: `{}`,
		`payload.l.map(x, with(payload, {"c": x}).size())`:                                     wide,
		`payload.l.map(x, without(payload, ["k"]).size())`:                                     wide,
		`payload.items.all(x, event.createdAt.getHours("Europe/Berlin") >= 0)`:                 orders(30_000), // each reads the zone
	} {
		err := outcome(t.Context(), t, `{"r": `+text+`}`, payload)
		if strings.HasPrefix(text, `[[]]`) && strings.Contains(text, "x + x") {
			if err != nil {
				t.Errorf("%.60s: %v", text, err)
			}
			continue
		}
		if err == nil || !strings.HasPrefix(err.Error(), "line 1, column ") || !strings.Contains(err.Error(), "; write ") {
			t.Errorf("%.60s: %v", text, err)
		}
	}
}

// The limit of the work is an end, whether or not anything else would notice: a test of its own, with its
// own time limit, so that an evaluation without one fails it at once.
func TestCostLimitEndsNestedLoops(t *testing.T) {
	x, err := expression.Bool(`payload.a.all(x, payload.a.all(y, payload.a.exists(z, x + y > 0.0)))`)
	if err == nil || !strings.Contains(err.Error(), "fewer loops inside loops") {
		t.Errorf("three loops: %v, %v", x, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	err = outcome(ctx, t, `{"r": payload.a.all(x, payload.a.all(y, x + y > 0.0))}`, `{"a": [1`+strings.Repeat(",1", 19_999)+`]}`)
	if err == nil || !strings.Contains(err.Error(), "it costs more than a payload of 40008 bytes may (1160032 units of work)") {
		t.Errorf("20,000 elements for each of 20,000: %v", err)
	}
	if err := outcome(ctx, t, `{"r": payload.a.all(x, payload.a.all(y, x + y > 0.0))}`, `{"a": [1`+strings.Repeat(",1", 99)+`]}`); err != nil {
		t.Errorf("100 elements for each of 100: %v", err)
	}
}

// 80 KB that an expression would grow without bound are refused before they are made: all that is ever
// allocated, and so what is live, is less than 64 MiB.
//
// CONTRACT: C-35
func TestMemoryIsLimitedBeforeAllocation(t *testing.T) {
	payload := `{"a": "` + strings.Repeat("x", 40_000) + `", "b": "` + strings.Repeat("y", 40_000) + `"}`
	doubled := func(start, step string) string { return `[` + start + `]` + strings.Repeat(`.map(x, `+step+`)`, 30) }
	for _, text := range []string{
		`payload.a.replace("x", payload.b)`,
		`payload.a.replace("", payload.b)`,
		`payload.a.split("").map(x, payload.b).join("")`,
		`payload.a.split("").join(payload.b)`,
		`payload.a.split("").map(x, payload.b + x)`,
		`payload.a.split("").map(x, payload.a.split(""))`,
		`payload.a.split("").map(x, payload.b)`,
		`payload.a.split("").map(x, with(payload, {"c": x}))`,
		`payload.a.split("").map(x, mask(payload, ["a"]))`,
		`payload.a.split("").map(x, [payload, payload])`,
		`payload.a.split("").map(x, {"c": payload, "d": payload})`,
		`payload.a.split("").map(x, "%s".format([payload.a]))`,
		`payload.a.replace("x", "%s").format(payload.a.split("").map(x, payload.b))`,
		`payload.a.replace("x", "%.100f").format(payload.a.split("").map(x, 1e300))`,
		`payload.a.split("").map(x, strings.quote(payload.a))`,
		`payload.a.split("").map(x, bytes(payload.a))`,
		doubled(`payload.a`, `x + x`),
		doubled(`[payload.a]`, `x + x`),
		doubled(`payload`, `with(x, {"a": x, "b": x})`),
		doubled(`payload`, `{"a": x, "b": x}`),
		doubled(`[]`, `[x, x]`),
		doubled(`payload.a`, `x.replace("x", "xx")`),
		doubled(`payload.a`, `"%s%s".format([x, x])`),
		doubled(`payload.a`, `[x, x].join("")`),
	} {
		x, err := expression.JSON(`with(payload, {"made": ` + text + `})`)
		if err != nil {
			t.Errorf("%.60s: %v", text, err)
			continue
		}
		e, decoded := with(t, payload)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err = x.JSON(t.Context(), e, decoded)
		runtime.ReadMemStats(&after)
		if err == nil || !strings.Contains(err.Error(), " than ") || !strings.HasPrefix(err.Error(), "line 1, column ") {
			t.Errorf("%.60s: %v", text, err)
		}
		if made := (after.TotalAlloc - before.TotalAlloc) >> 20; made > 64 {
			t.Errorf("%.60s: %d MiB were allocated", text, made)
		}
	}
	if err := outcome(t.Context(), t, `with(payload, {"c": payload.a.replace("x", "yy"), "d": payload.b + payload.b})`, payload); err != nil {
		t.Errorf("what grows within the limits: %v", err)
	}
	if err := outcome(t.Context(), t, `with(payload, {"c": payload.c + payload.c})`, `{"c": "`+strings.Repeat("größer ", 100_000)+`"}`); err != nil {
		t.Errorf("a text that is doubled: %v", err)
	}
}

// An evaluation ends with its context.
func TestEvaluationEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := outcome(ctx, t, `{"r": payload.items.all(x, x.q > 0)}`, orders(1000))
	if err == nil || !strings.HasSuffix(err.Error(), ": it was interrupted: context canceled") {
		t.Errorf("error %v", err)
	}
}

// The longest that an evaluation can take with a payload of a MiB, by what it does.
func BenchmarkLimit(b *testing.B) {
	for _, text := range []string{
		`payload.items.all(i, i.q > 0 && i.p > 0)`,
		`payload.items.all(x, payload.items.all(y, x.q + y.q > 0.0))`,
		`payload.items.filter(x, payload.items.filter(y, false).size() > 0).size() > 0`,
		`payload.items.exists_one(x, payload.items.exists_one(y, has(y.z) ? y.z : false))`,
		`payload.items.all(x, payload.items == payload.items)`,
		`payload.items.all(x, payload.items.map(y, y.q + y.p - x.q * y.p / x.q).size() > 0)`,
	} {
		x, err := expression.Bool(text)
		if err != nil {
			b.Fatal(err)
		}
		e, decoded := with(b, orders(60_000))
		b.Run(text, func(b *testing.B) {
			for b.Loop() {
				_, _ = x.Bool(b.Context(), e, decoded)
			}
		})
	}
}
