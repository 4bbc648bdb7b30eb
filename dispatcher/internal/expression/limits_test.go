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
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// with returns an event with the payload, and what it is decoded.
func with(t testing.TB, payload string) (*dispatcher.Event, any) {
	t.Helper()
	e := event()
	e.Payload = []byte(payload)
	decoded, err := expression.Decode(e.Payload)
	need.OK(t, err)
	return e, decoded
}

// outcome of a transformation. One that has no end fails the test, and is left behind.
func outcome(ctx context.Context, t *testing.T, text, payload string) error {
	t.Helper()
	x, err := expression.JSON(text)
	need.Must(t, err == nil, "%.80s: %v", text, err)
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
	case <-time.After(need.Wait):
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
		need.Want(t, nil, "%.60s: %v", outcome(t.Context(), t, `{"r": `+text+`}`, orders(60_000)), text)
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
			need.Want(t, nil, "%.60s: %v", err, text)
			continue
		}
		need.That(t, err != nil && strings.HasPrefix(err.Error(), "line 1, column ") && strings.Contains(err.Error(), "; write "), "%.60s: %v", text, err)
	}
}

// The limit of the work is an end, whether or not anything else would notice: a test of its own, with its
// own time limit, so that an evaluation without one fails it at once.
func TestCostLimitEndsNestedLoops(t *testing.T) {
	x, err := expression.Bool(`payload.a.all(x, payload.a.all(y, payload.a.exists(z, x + y > 0.0)))`)
	need.That(t, err != nil && strings.Contains(err.Error(), "fewer loops inside loops"), "three loops: %v, %v", x, err)
	ctx, cancel := context.WithTimeout(t.Context(), need.Wait)
	defer cancel()
	err = outcome(ctx, t, `{"r": payload.a.all(x, payload.a.all(y, x + y > 0.0))}`, `{"a": [1`+strings.Repeat(",1", 19_999)+`]}`)
	need.That(t, err != nil && strings.Contains(err.Error(), "it costs more than a payload of 40008 bytes may (1160032 units of work)"),
		"20,000 elements for each of 20,000: %v", err)
	need.Want(t, nil, "100 elements for each of 100: %v", outcome(ctx, t, `{"r": payload.a.all(x, payload.a.all(y, x + y > 0.0))}`, `{"a": [1`+strings.Repeat(",1", 99)+`]}`))
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
		need.That(t, err != nil && strings.Contains(err.Error(), " than ") && strings.HasPrefix(err.Error(), "line 1, column "), "%.60s: %v", text, err)
		made := (after.TotalAlloc - before.TotalAlloc) >> 20
		need.That(t, made <= 64, "%.60s: %d MiB were allocated", text, made)
	}
	need.Want(t, nil, "what grows within the limits: %v", outcome(t.Context(), t, `with(payload, {"c": payload.a.replace("x", "yy"), "d": payload.b + payload.b})`, payload))
	need.Want(t, nil, "a text that is doubled: %v", outcome(t.Context(), t, `with(payload, {"c": payload.c + payload.c})`, `{"c": "`+strings.Repeat("größer ", 100_000)+`"}`))
}

// An evaluation ends with its context.
func TestEvaluationEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := outcome(ctx, t, `{"r": payload.items.all(x, x.q > 0)}`, orders(1000))
	need.That(t, err != nil && strings.HasSuffix(err.Error(), ": it was interrupted: context canceled"), "error %v", err)
}

// Every number that JSON has, in every operator with a literal of every type on either side.
//
// CONTRACT: C-72
func TestEveryNumberInEveryOperator(t *testing.T) {
	numbers := []string{"0", "-0", "3", "3.0", "3.5", "1e3", "1E+3", "1.5e-3", "9007199254740991", "9007199254740993", "-9007199254740993",
		"9223372036854775807", "-9223372036854775808", "9223372036854775808", "18446744073709551615", "18446744073709551616",
		"123456789012345678901234567890", "-123456789012345678901234567890", "1e300", "5e-324", "1e-999", "1e999", "0.1234567890123456789012345"}
	for _, n := range numbers {
		payload, err := expression.Decode([]byte(`{"n": ` + n + `, "one": 1, "half": 0.5}`))
		need.OK(t, err)
		for _, other := range []string{"1", "1.0", "1u", "0.5", "payload.one", "payload.half"} {
			for _, operator := range []string{"+", "-", "*", "/", "%", "<", "<=", ">", ">=", "=="} {
				expressions := []string{"payload.n " + operator + " " + other}
				if operator != "/" && operator != "%" || !strings.Contains("0 -0 1e-999", n) { // by zero
					expressions = append(expressions, other+" "+operator+" payload.n")
				}
				for _, text := range expressions {
					if strings.ContainsAny(operator, "+-*/%") {
						text += " < 0"
					}
					if n == "1e999" && operator == "%" {
						continue // the difference of infinities is not a number
					}
					x, err := expression.Bool(text)
					need.Must(t, err == nil, "%s: %v", text, err)
					need.Want(t, nil, "%s of %s: %v", need.Err(x.Bool(t.Context(), event(), payload)), text, n)
				}
			}
		}
		x, err := expression.Bool("payload.n + 1 > 0 && payload.n + 1.0 > 0.0")
		need.OK(t, err)
		negative := strings.HasPrefix(n, "-") && n != "-0"
		if ok, err := x.Bool(t.Context(), event(), payload); err != nil || ok == negative {
			t.Errorf("%s + 1 > 0 is %v, %v", n, ok, err)
		}
	}
}

// Whole outcomes are exact, whatever the types, and a number that no type holds keeps its text.
func TestWholeNumbersAreExact(t *testing.T) {
	payload, err := expression.Decode([]byte(`{"id": 9007199254740993, "max": 9223372036854775807, "umax": 18446744073709551615, "min": -9223372036854775808,
		"q": 7, "whole": 4.0, "half": 3.5, "long": 123456789012345678901234567890, "long2": 123456789012345678901234567891, "neg": -123456789012345678901234567890,
		"longs": [1, 123456789012345678901234567890], "decimal": 0.1234567890123456789012345, "sum": 0.30000000000000004, "huge": 1e999, "point": 9007199254740993.0, "thousand": 1e3}`))
	need.OK(t, err)
	for text, want := range map[string]string{
		`payload.id + 1`: `9007199254740994`, `1.0 + payload.id`: `9007199254740994`, `payload.id - 0.0`: `9007199254740993`, `payload.id * 1u`: `9007199254740993`,
		`payload.max + 1`: `9223372036854775808`, `payload.umax - payload.max`: `9223372036854775808`, `payload.umax + 1`: `18446744073709552000`,
		`payload.min - 1`: `-9223372036854776000`, `-1 + payload.min`: `-9223372036854776000`, `payload.min * 2`: `-18446744073709552000`,
		`-payload.min`: `9223372036854775808`, `-payload.umax`: `-18446744073709552000`, `-payload.half`: `-3.5`,
		`payload.q / 2`: `3.5`, `payload.q / 7`: `1`, `int(payload.q) / 2`: `3`, `7 / 2`: `3`, `7 / 2.0`: `3.5`, `payload.q % 4`: `3`, `payload.half % 2`: `1.5`,
		`payload.min / -1`: `9223372036854775808`, `payload.whole`: `4`, `payload.whole * 2`: `8`, `"abcdef".substring(payload.whole)`: `"ef"`, `payload.thousand`: `1000`,
		`payload.long`: `123456789012345678901234567890`, `payload.decimal`: `0.1234567890123456789012345`, `payload.sum`: `0.30000000000000004`,
		`[payload.long]`: `[123456789012345678901234567890]`, `string(payload.long)`: `"123456789012345678901234567890"`, `payload.huge`: `1e999`, `payload.point`: `9007199254740993.0`,
		`payload.long * 2`: `2.4691357802469136e+29`, `payload.long == payload.long2`: `false`, `payload.long < payload.long2`: `true`, `payload.neg < payload.long`: `true`,
		`payload.id == 9007199254740992.0`: `false`, `payload.id > 9007199254740992.0`: `true`, `payload.umax > payload.max`: `true`, `payload.huge > payload.long`: `true`,
		`payload.long in [1, payload.long]`: `true`, `payload.long in payload.longs`: `true`, `payload.long2 in payload.longs`: `false`, `7 in [payload.long, 7]`: `true`, `7 in [payload.long]`: `false`,
		`0.1234567890123456789012345 in [payload.decimal]`: `true`, `[payload.long] == [payload.long]`: `true`, `[payload.long] != [payload.long]`: `false`, `[payload.long] == [payload.long2]`: `false`,
		`[payload.long] != [payload.long2]`: `true`, `{"a": payload.decimal} == {"a": payload.decimal}`: `true`, `{"a": payload.decimal} == {"a": payload.sum}`: `false`, `payload == payload`: `true`,
		`[payload.long] in [[payload.long]]`: `true`, `payload.?long == payload.?long`: `true`,
		`payload.q in [1, 7.0]`: `true`, `payload.whole in [4]`: `true`, `1.0 < 2`: `true`,
	} {
		x, err := expression.JSON(`{"r": ` + text + `}`)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		made, err := x.JSON(t.Context(), event(), payload)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got, err := expression.Encode(made); err != nil || string(got) != `{"r":`+want+`}` {
			t.Errorf("%s: %s, %v, want %s", text, got, err, want)
		}
	}
}
