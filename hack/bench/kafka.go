package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"
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

// into adds a run of a dispatcher to a row.
type into func(which build, c string, look lookAt)

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
	b.beforeKafka(ctx, "kafka", func(add into, builds []build) {
		for _, rate := range []float64{20, 500} {
			for range b.runs {
				for _, which := range builds {
					add(which, rateName(rate), func(ctx context.Context, r *kafkaRun) (measure, error) {
						return r.steady(ctx, pace{rate, b.size.kafka})
					})
				}
			}
		}
	})
}

// beforeKafka starts a broker for a cell. do measures the builds.
func (b *bench) beforeKafka(ctx context.Context, cell string, do func(add into, builds []build)) {
	fail := func(err error) {
		b.measure(ctx, cell, system{Name: binaryDefault}, "", func() (measure, error) { return nil, err })
	}
	dir, err := os.MkdirTemp("", "outbox-bench-")
	if err != nil {
		fail(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	builds := b.builds
	if len(builds) == 0 {
		own, err := buildDispatcher(ctx, dir)
		if err != nil {
			fail(err)
			return
		}
		builds = []build{{binaryDefault, own}}
	}
	broker, err := kafka.Start(ctx, kafka.Options{})
	if errors.Is(err, kafka.ErrMissing) {
		b.note("The cell %s is left out: %v", cell, err)
		return
	}
	if err != nil {
		fail(fmt.Errorf("start Kafka: %w", err))
		return
	}
	defer func() { _ = broker.Stop(context.WithoutCancel(ctx)) }()
	do(func(which build, c string, look lookAt) {
		s := system{Name: which.name, Settings: "all default, polling; one broker, one partition"}
		b.measure(ctx, cell, s, c, func() (measure, error) { return b.intoKafka(ctx, broker, dir, which, look) })
	}, builds)
}

// kafkaRun is one dispatcher between a database and a topic of its own.
type kafkaRun struct {
	*database
	broker *kafka.Broker
	admin  *kadm.Client
	client *kgo.Client
	topic  string
	pool   *pgxpool.Pool
	pid    int // the dispatcher's
}

// intoKafka starts a dispatcher with a database and a topic of its own.
func (b *bench) intoKafka(ctx context.Context, broker *kafka.Broker, dir string, which build, look lookAt) (m measure, err error) {
	db, err := b.srv.database(ctx)
	if err != nil {
		return nil, err
	}
	defer db.drop()
	r := &kafkaRun{database: db, broker: broker, topic: db.name}
	if r.client, err = kgo.NewClient(kgo.SeedBrokers(broker.Address(kafka.Plain))); err != nil {
		return nil, err
	}
	defer r.client.Close()
	r.admin = kadm.NewClient(r.client)
	stamped := "LogAppendTime"
	if _, err := r.admin.CreateTopic(ctx, 1, 1, map[string]*string{"message.timestamp.type": &stamped}, r.topic); err != nil {
		return nil, err
	}
	text, err := json.Marshal(map[string]any{
		"name": "bench", "namespace": namespace, "database": map[string]any{"dsn": db.dsn()},
		"sink":   map[string]any{"kafka": map[string]any{"brokers": []string{broker.Address(kafka.Plain)}}},
		"server": map[string]any{"address": "127.0.0.1:0"},
	})
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, db.name+".yaml") // JSON is YAML
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return nil, err
	}
	// The schema is the build's own.
	if _, err := output(exec.CommandContext(ctx, which.path, "migrate", "up", "-f", file)); err != nil {
		return nil, err
	}
	if r.pool, err = pgxpool.New(ctx, db.dsn()); err != nil {
		return nil, err
	}
	defer r.pool.Close()
	cmd := exec.Command(which.path, "run", "-f", file)
	cmd.SysProcAttr = endWithParent()
	log := &tail{}
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	r.pid = cmd.Process.Pid
	defer func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if waitErr := cmd.Wait(); waitErr != nil || err != nil {
			err = errors.Join(err, waitErr, fmt.Errorf("the dispatcher's log: %s", log))
		}
	}()
	return look(ctx, r)
}

// produce adds event n, in a transaction of its own.
func (r *kafkaRun) produce(ctx context.Context, n int) error {
	_, err := r.pool.Exec(ctx, `insert into outbox.outbox_events (id, namespace, topic, payload)
		values (gen_random_uuid(), $1, $2, jsonb_build_object('n', $3::int, 'text', repeat('x', 170)))`, namespace, r.topic, n)
	return err
}

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
	before, err := r.costs()
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
	after, err := r.costs()
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
	m := measure{
		brokerSeconds: after.broker - before.broker,
		clientCPU:     (after.client - before.client) * 1e6 / float64(events),
		dbCPU:         (after.db - before.db) * 1e6 / float64(events),
		sendRate:      float64(batches) / p.time.Seconds(),
	}
	m.percentiles(waits)
	return m, nil
}

// costs are the seconds of CPU time that each of the three has used.
type costs struct{ broker, client, db float64 }

func (r *kafkaRun) costs() (c costs, err error) {
	broker, err := treeCPU(r.broker.Pid())
	if err != nil {
		return c, err
	}
	client, err := treeCPU(r.pid)
	if err != nil {
		return c, err
	}
	db, err := treeCPU(r.server.pid)
	return costs{broker.Seconds(), client.Seconds(), db.Seconds()}, err
}

// end is how many records the topic has.
func (r *kafkaRun) end(ctx context.Context) (int64, error) {
	ends, err := r.admin.ListEndOffsets(ctx, r.topic)
	if err == nil {
		err = ends.Error()
	}
	o, _ := ends.Lookup(r.topic, 0)
	return o.Offset, err
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
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{r.topic: {0: kgo.NewOffset().At(from)}}))
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
