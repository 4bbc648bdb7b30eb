package main

import (
	"cmp"
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outbox-operator/outbox-operator/hack/servers/kafka"
)

// runOutage measures what comes after an outage.
func runOutage(ctx context.Context, b *bench) {
	b.beforeKafka(ctx, "outage", b.srv, func(k *kafkaCell) {
		for range b.runs {
			for _, which := range k.builds {
				k.measure(ctx, dispatcherRelay(which, nil), b.size.outage.String(), func(ctx context.Context, r *kafkaRun) (measure, error) {
					return r.outage(ctx, 5, b.size.outage)
				})
			}
		}
	})
}

// outage kills the broker for the time while events come, and measures the time from its first response to the first
// record, and what was lost and doubled.
func (r *kafkaRun) outage(ctx context.Context, rate int, down time.Duration) (measure, error) {
	if _, err := r.produceSteadily(ctx, 20, 40); err != nil {
		return nil, err
	}
	if err := r.await(ctx, 40); err != nil {
		return nil, err
	}
	events := rate * int(down.Seconds())
	r.broker.Kill()
	produced := make(chan error, 1)
	go func() {
		_, err := r.produceSteadily(ctx, float64(rate), events)
		produced <- err
	}()
	if err := cmp.Or(sleep(ctx, down), <-produced); err != nil {
		return nil, err
	}
	responded := make(chan time.Time, 1)
	go func() { responded <- r.firstResponse(ctx) }()
	restarted := time.Now()
	if err := r.broker.Restart(ctx); err != nil {
		return nil, err
	}
	at := <-responded
	if err := r.await(ctx, 41); err != nil {
		return nil, err
	}
	records, lost, err := r.arrivals(ctx, 40, events)
	if err != nil {
		return nil, err
	}
	first, last := records[0].Timestamp, records[len(records)-1].Timestamp
	return measure{
		firstAfter: first.Sub(at).Seconds(), allAfter: last.Sub(at).Seconds(), startTook: at.Sub(restarted).Seconds(),
		lostEvents: float64(lost), doubledEvents: float64(len(records) - (events - lost)),
	}, nil
}

// firstResponse is when the broker says that the topic's partition has a leader.
func (r *kafkaRun) firstResponse(ctx context.Context) time.Time {
	for ctx.Err() == nil {
		try, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		client, err := kgo.NewClient(kgo.SeedBrokers(r.broker.Address(kafka.Plain)), kgo.RequestRetries(0))
		if err == nil {
			details, err := kadm.NewClient(client).ListTopics(try, r.topic)
			client.Close()
			if p, ok := details[r.topic].Partitions[0]; err == nil && ok && p.Err == nil && p.Leader >= 0 {
				cancel()
				return time.Now()
			}
		}
		cancel()
		time.Sleep(20 * time.Millisecond)
	}
	return time.Now()
}
