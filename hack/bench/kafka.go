package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outbox-operator/outbox-operator/hack/servers/kafka"
)

// The cell kafka measures the dispatcher's binary with its default file, by polling, into a real broker. The
// flag -dispatchers names builds to measure in turn instead of this tree's, to compare with an earlier commit:
//
//	go build -o /tmp/now ../../dispatcher/cmd/dispatcher
//	git worktree add /tmp/then COMMIT && (cd /tmp/then && go build -o /tmp/before ./dispatcher/cmd/dispatcher)
//	go run . -cells kafka -dispatchers before=/tmp/before,now=/tmp/now
//
// The waits are from just before the producer's transaction to the time at which the broker appended the record,
// in milliseconds as Kafka counts them: no consumer takes part, which would cost the broker as much again.

// lookAt measures one run.
type lookAt func(ctx context.Context, r *kafkaRun) (measure, error)

// build is a dispatcher's binary.
type build struct{ name, path string }

func parseBuilds(text string) (builds []build, err error) {
	for _, word := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' }) {
		name, path, ok := strings.Cut(word, "=")
		if !ok {
			return nil, fmt.Errorf("-dispatchers: %q is not name=path", word)
		}
		builds = append(builds, build{name, path})
	}
	return builds, nil
}

// runKafka measures streams. The slow one is first: it warms the broker.
func runKafka(ctx context.Context, b *bench) {
	b.beforeKafka(ctx, "kafka", b.srv, func(k *kafkaCell) {
		for _, rate := range []float64{20, 500} {
			for range b.runs {
				for _, which := range k.builds {
					k.measure(ctx, dispatcherRelay(which, nil), rateName(rate), func(ctx context.Context, r *kafkaRun) (measure, error) {
						return r.steady(ctx, pace{rate, b.size.kafka})
					})
				}
			}
		}
	})
}

// kafkaCell is a cell with a broker.
type kafkaCell struct {
	*bench
	cell   string
	srv    *server
	broker *kafka.Broker
	dir    string
	builds []build
	// idleBroker is the broker's share of a core with nothing to do. It is 0 where it was not measured.
	idleBroker float64
}

// measure adds a run of a relay, with a database and a topic of its own, to a row.
func (k *kafkaCell) measure(ctx context.Context, which relay, c string, look lookAt) {
	k.bench.measure(ctx, k.cell, which.system(), c, func() (m measure, err error) {
		err = k.with(ctx, which, func(r *kafkaRun) (err error) {
			m, err = look(ctx, r)
			return err
		})
		return m, err
	})
}

// beforeKafka starts a broker for a cell, and builds the dispatcher.
func (b *bench) beforeKafka(ctx context.Context, cell string, srv *server, do func(k *kafkaCell)) {
	k := &kafkaCell{bench: b, cell: cell, srv: srv, builds: b.builds}
	err := func() (err error) {
		if k.dir, err = os.MkdirTemp("", "outbox-bench-"); err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(k.dir) }()
		if len(k.builds) == 0 {
			own, err := buildDispatcher(ctx, k.dir)
			if err != nil {
				return err
			}
			k.builds = []build{{binaryDefault, own}}
		}
		if k.broker, err = kafka.Start(ctx, kafka.Options{}); err != nil {
			return fmt.Errorf("start Kafka: %w", err)
		}
		defer func() { _ = k.broker.Stop(context.WithoutCancel(ctx)) }()
		do(k)
		return nil
	}()
	b.withoutCell(ctx, cell, err)
}

// withoutCell reports why a cell was not measured, if err is not nil.
func (b *bench) withoutCell(ctx context.Context, cell string, err error) {
	if errors.Is(err, kafka.ErrMissing) {
		b.note("The cell %s is left out: %v", cell, err)
	} else if err != nil {
		b.measure(ctx, cell, system{Name: binaryDefault}, "", func() (measure, error) { return nil, err })
	}
}

// produce adds event n, in a transaction of its own.
func (r *kafkaRun) produce(ctx context.Context, n int) error { return r.add(ctx, payload(n, 200)) }

// produceSteadily adds events at a steady rate, and returns when each was begun. A producer that is late does
// not skip: it catches up.
func (r *kafkaRun) produceSteadily(ctx context.Context, rate float64, events int) ([]time.Time, error) {
	began := make([]time.Time, events)
	errs := make([]error, events)
	var group sync.WaitGroup
	free := make(chan struct{}, producers)
	start := time.Now()
	for n := range events {
		time.Sleep(time.Until(start.Add(time.Duration(float64(n) / rate * float64(time.Second)))))
		free <- struct{}{}
		group.Go(func() {
			began[n] = time.Now()
			errs[n] = r.produce(ctx, n)
			<-free
		})
	}
	group.Wait()
	return began, errors.Join(errs...)
}

// steady produces at a pace, and measures what that costs all three.
func (r *kafkaRun) steady(ctx context.Context, p pace) (measure, error) {
	if _, err := r.produceSteadily(ctx, 50, 50); err != nil { // connections and plans are made
		return nil, err
	}
	if err := r.await(ctx, 50); err != nil {
		return nil, err
	}
	before, err := r.costs(ctx)
	if err != nil {
		return nil, err
	}
	events := int(p.rate * p.time.Seconds())
	began, err := r.produceSteadily(ctx, p.rate, events)
	if err != nil {
		return nil, err
	}
	if err := r.await(ctx, int64(50+events)); err != nil {
		return nil, err
	}
	after, err := r.costs(ctx)
	if err != nil {
		return nil, err
	}
	records, batches, err := r.consume(ctx, 50)
	if err != nil {
		return nil, err
	}
	var waits []float64
	for _, record := range records {
		n, err := number(record.Value)
		if err != nil {
			return nil, err
		}
		// Kafka cuts what is below a millisecond off.
		waits = append(waits, max(0, float64(record.Timestamp.Sub(began[n]))/1e6))
	}
	if len(waits) != events {
		return nil, fmt.Errorf("%d records arrived, want %d", len(waits), events)
	}
	slices.Sort(waits)
	m := r.spent(before, after, events)
	m[brokerSeconds] = after.broker - before.broker
	m[sendRate] = float64(batches) / p.time.Seconds()
	m.percentiles(waits)
	return m, nil
}

// end is how many records the topic has, those before from left out.
func (r *kafkaRun) end(ctx context.Context) (int64, error) {
	ends, err := r.admin.ListEndOffsets(ctx, r.topic)
	if err == nil {
		err = ends.Error()
	}
	o, _ := ends.Lookup(r.topic, 0)
	return o.Offset - r.from, err
}

// await waits until the topic has so many records.
func (r *kafkaRun) await(ctx context.Context, records int64) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		switch end, err := r.end(ctx); {
		case err != nil:
			return err
		case end >= records:
			return nil
		}
		if err := sleep(ctx, 200*time.Millisecond); err != nil {
			return fmt.Errorf("waiting for %d records: %w", records, err)
		}
	}
}

// batchCounter counts the batches that a topic's records were produced in.
type batchCounter struct {
	mu sync.Mutex
	n  int
}

// OnFetchBatchRead is kgo's word of a batch.
func (c *batchCounter) OnFetchBatchRead(kgo.BrokerMetadata, string, int32, kgo.FetchBatchMetrics) {
	c.mu.Lock()
	c.n++
	c.mu.Unlock()
}

// consume reads the topic's records from an offset, and counts their batches.
func (r *kafkaRun) consume(ctx context.Context, from int64) (records []*kgo.Record, batches int, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	end, err := r.end(ctx)
	if err != nil {
		return nil, 0, err
	}
	count := &batchCounter{}
	reader, err := kgo.NewClient(kgo.SeedBrokers(r.broker.Address(kafka.Plain)), kgo.WithHooks(count),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{r.topic: {0: kgo.NewOffset().At(r.from + from)}}))
	if err != nil {
		return nil, 0, err
	}
	defer reader.Close()
	for int64(len(records)) < end-from {
		fetches := reader.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return nil, 0, err
		}
		records = append(records, fetches.Records()...)
	}
	count.mu.Lock()
	defer count.mu.Unlock()
	return records, count.n, nil
}
