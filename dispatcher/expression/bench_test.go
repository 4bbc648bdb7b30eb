package expression_test

import (
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/dispatcher/expression"
)

func BenchmarkString(b *testing.B) {
	for _, text := range []string{`'fixed'`, `event.topic`, `'shop.' + event.type`, `event.headers.?region.orValue('eu') + '.' + event.topic`} {
		x, err := expression.String(text)
		if err != nil {
			b.Fatal(err)
		}
		e := event()
		b.Run(text, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := x.String(e); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// The longest that an evaluation can take.
func BenchmarkCostLimit(b *testing.B) {
	for _, text := range []string{
		`payload.a.all(x, payload.a.all(y, x + y > 0.0))`,
		`payload.a.all(x, without(payload, ["a.*.b"]).size() > 0)`,
	} {
		x, err := expression.Bool(text)
		if err != nil {
			b.Fatal(err)
		}
		payload, _ := expression.Decode([]byte(`{"a": [1` + strings.Repeat(",1", 9999) + `]}`))
		b.Run(text, func(b *testing.B) {
			for b.Loop() {
				if _, err := x.Bool(event(), payload); err == nil {
					b.Fatal("there is no limit")
				}
			}
		})
	}
}
