package cloudsink

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
)

// odd is a service with a destination that is silent, and one at which it panics.
type odd struct {
	service
	sent atomic.Int64 // to the silent one
}

func (o *odd) send(ctx context.Context, to string, messages []*message) ([]error, error) {
	switch to {
	case "silent":
		o.sent.Add(1)
		<-ctx.Done()
		return nil, ctx.Err()
	case "panics":
		panic("odd")
	}
	return make([]error, len(messages)), nil
}

// A destination that is silent gets no more of a batch than what was on its way, and the others get all of it. A
// panic is the caller's: elsewhere it would end the process.
//
// CONTRACT: C-32, C-33
func TestSilenceAndPanicsOfABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		open := func() (*sink, *odd) {
			o := &odd{service: &pubsubService{}}
			return (&sink{
				service: o, limits: limits{1, pubsubBytes}, timeout: time.Minute, encode: encoder("pubsub", config.Binary, "ce-"),
				group: func(m *message) string { return m.key },
			}).to(nil, ""), o
		}
		batch := func(n int, topic string, key func(int) string) (events []*dispatcher.Event) {
			for i := range n {
				e := newEvent()
				e.Topic, e.PartitionKey = topic, key(i)
				events = append(events, e)
			}
			return events
		}
		for name, key := range map[string]func(int) string{"many keys": strconv.Itoa, "one key": func(int) string { return "7" }} {
			s, o := open()
			events := append(batch(200, "silent", key), batch(200, "others", key)...)
			held := 0
			for i, err := range s.Deliver(t.Context(), events) {
				switch {
				case i >= 200:
					if err != nil {
						t.Errorf("%s: another destination: %v", name, err)
					}
				case dispatcher.IsUnavailable(err):
					held++
					verify(t, name, err, unavailable, reason.ConnectionFailed, "gave no response to others of the batch, so this was not sent; ")
				default:
					verify(t, name, err, failed, reason.ConnectionFailed, "gave no response within 1m0s; ")
				}
			}
			sent := int(o.sent.Load())
			if sent > requestsAtOnce || sent+held != 200 || name == "one key" && sent != 1 {
				t.Errorf("%s: %d requests to the silent destination, and %d events were held back", name, sent, held)
			}
			for _, others := range []int{0, 100} {
				func() {
					defer func() {
						if v := recover(); v != "odd" {
							t.Errorf("%s, %d others: Deliver panicked with %v, want the service's value", name, others, v)
						}
					}()
					s.Deliver(t.Context(), append(batch(100, "panics", key), batch(others, "others", key)...))
				}()
			}
		}
	})
}

// A message has 100 attributes at most: headers under their own names stop there, and their attributes have them all.
//
// CONTRACT: C-35, C-70
func TestPubSubMessagesHaveRoom(t *testing.T) {
	p, server := newPubSub(t, config.Binary)
	const trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	for _, test := range []struct{ headers, own int }{{10, 10}, {70, -1}} { // -1: as many as there is room for
		e := newEvent()
		e.Headers = map[string]string{"traceparent": trace}
		e.Message.Headers = []dispatcher.Header{{Name: "Configured", Value: "x"}}
		for i := range test.headers {
			e.Headers[fmt.Sprintf("x-a-%d", i)] = "x"
		}
		if err := deliver(t, p.sink, e); err != nil {
			t.Fatal(err)
		}
		all := server.Messages()
		attributes := all[len(all)-1].Attributes
		counted := map[string]int{}
		for name := range attributes {
			counted[name[:min(4, len(name))]]++
		}
		if counted["ce-x"] != test.headers || attributes["Configured"] == "" || attributes["traceparent"] != trace || attributes["content-type"] == "" {
			t.Errorf("%d headers: the attributes are %q", test.headers, attributes)
		}
		if own := counted["x-a-"]; test.own >= 0 && own != test.own || test.own < 0 && len(attributes) != pubsubAttributes {
			t.Errorf("%d headers: %d under their own names, and %d attributes in all", test.headers, own, len(attributes))
		}
	}
}
