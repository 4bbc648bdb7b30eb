package expression_test

import (
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/dispatcher/internal/expression"
)

// Every number that JSON has, in every operator with a literal of every type on either side.
//
// CONTRACT: C-72
func TestEveryNumberInEveryOperator(t *testing.T) {
	numbers := []string{"0", "-0", "3", "3.0", "3.5", "1e3", "1E+3", "1.5e-3", "9007199254740991", "9007199254740993", "-9007199254740993",
		"9223372036854775807", "-9223372036854775808", "9223372036854775808", "18446744073709551615", "18446744073709551616",
		"123456789012345678901234567890", "-123456789012345678901234567890", "1e300", "5e-324", "1e-999", "1e999", "0.1234567890123456789012345"}
	for _, n := range numbers {
		payload, err := expression.Decode([]byte(`{"n": ` + n + `, "one": 1, "half": 0.5}`))
		if err != nil {
			t.Fatal(err)
		}
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
					if err != nil {
						t.Fatalf("%s: %v", text, err)
					}
					if _, err := x.Bool(t.Context(), event(), payload); err != nil {
						t.Errorf("%s of %s: %v", text, n, err)
					}
				}
			}
		}
		x, err := expression.Bool("payload.n + 1 > 0 && payload.n + 1.0 > 0.0")
		if err != nil {
			t.Fatal(err)
		}
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
	if err != nil {
		t.Fatal(err)
	}
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
