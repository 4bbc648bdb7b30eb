package expression_test

import (
	"testing"

	"github.com/outbox-operator/outbox-operator/dispatcher/internal/expression"
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
