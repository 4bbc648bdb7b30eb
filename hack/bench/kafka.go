package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outbox-operator/outbox-operator/hack/internal/daemon"
	"github.com/outbox-operator/outbox-operator/hack/internal/fetch"
	"github.com/outbox-operator/outbox-operator/hack/servers/kafka"
)

// kafkaCell is what the relays of the cell kafka have in common.
type kafkaCell struct {
	*bench
	srv        *server // with wal_level = logical, which Debezium needs
	broker     *kafka.Broker
	client     *kgo.Client
	admin      *kadm.Client
	jars       []string // of Kafka Connect with Debezium
	binary     string   // the dispatcher's, as the image has it
	idleBroker float64  // the broker's share of a core with nothing to do
}

// runKafka measures Debezium and the dispatcher in turn.
func runKafka(ctx context.Context, b *bench) {
	err := b.withKafka(ctx, func(k *kafkaCell) error {
		if err := k.idle(ctx); err != nil {
			return err
		}
		for range b.runs {
			for _, which := range k.relays() {
				k.compare(ctx, which)
			}
		}
		return nil
	})
	if errors.Is(err, fetch.ErrMissing) {
		b.note("The cell kafka is left out: %v", err)
	} else if err != nil {
		b.measure(ctx, row{cell: "kafka", system: "broker"}, func() (measure, error) { return nil, err })
	}
}

// withKafka starts what the cell needs.
func (b *bench) withKafka(ctx context.Context, do func(k *kafkaCell) error) (err error) {
	k := &kafkaCell{bench: b}
	if k.jars, err = fetch.Java(ctx, debeziumJars); err != nil {
		return err
	}
	logical := maps.Clone(settings)
	logical["wal_level"] = "logical"
	if k.srv, err = startServer(ctx, logical); err != nil {
		return err
	}
	defer k.srv.close()
	if k.broker, err = kafka.Start(ctx, kafka.Options{}); err != nil {
		return fmt.Errorf("start Kafka: %w", err)
	}
	defer func() { err = errors.Join(err, k.broker.Stop(context.WithoutCancel(ctx))) }()
	if k.client, err = kgo.NewClient(kgo.SeedBrokers(k.broker.Address(kafka.Plain))); err != nil {
		return err
	}
	defer k.client.Close()
	k.admin = kadm.NewClient(k.client)
	k.binary = filepath.Join(k.broker.Dir, "dispatcher")
	if out, err := exec.CommandContext(ctx, "../build.sh", k.binary, "./dispatcher/cmd/dispatcher").CombinedOutput(); err != nil {
		return fmt.Errorf("build the dispatcher: %w: %s", err, out)
	}
	return do(k)
}

// relays are those that are compared.
func (k *kafkaCell) relays() []relay {
	own := k.dispatcherRelay("ours, default", "the dispatcher's binary, all default, polling", nil, nil)
	tuned := k.dispatcherRelay("ours, tuned", "batchSize 2000, retention.delivered 0s, records as Debezium's (message.format Plain, the header id), "+
		"wakeUp Listen and producer.Waker; the rest default", map[string]any{
		"delivery": map[string]any{"batchSize": 2000, "wakeUp": "Listen"},
		"message":  map[string]any{"format": "Plain", "headers": []map[string]any{{"name": "id", "expression": "event.id"}}},
	}, map[string]any{"retention": map[string]any{"delivered": "0s"}})
	tuned.wake = true
	return []relay{own, debeziumRelay("Debezium, default", nil), tuned, debeziumRelay("Debezium, tuned", tuning)}
}

// idle warms the broker, and measures what it takes with nothing to do.
func (k *kafkaCell) idle(ctx context.Context) error {
	if err := k.addTopic(ctx, "warm"); err != nil {
		return err
	}
	fill := k.broker.Tool(ctx, "org.apache.kafka.tools.ProducerPerformance", "--topic", "warm", "--num-records", strconv.Itoa(k.events/2),
		"--record-size", "200", "--throughput", "-1", "--producer-props", "bootstrap.servers="+k.broker.Address(kafka.Plain), "acks=all")
	if out, err := fill.CombinedOutput(); err != nil { // a broker that has just started compiles its code
		return fmt.Errorf("warm the broker: %w: %s", err, out)
	}
	if err := sleep(ctx, k.settled); err != nil {
		return err
	}
	before, err := treeCPU(k.broker.Pid())
	if err != nil {
		return err
	}
	if err := sleep(ctx, k.settled); err != nil {
		return err
	}
	after, err := treeCPU(k.broker.Pid())
	k.idleBroker = (after - before).Seconds() / k.settled.Seconds()
	k.say("an idle broker takes %.1f %% of a core", 100*k.idleBroker)
	return err
}

// addTopic makes a topic whose records have the time at which the broker appended them, in milliseconds.
func (k *kafkaCell) addTopic(ctx context.Context, name string) error {
	stamped := "LogAppendTime"
	_, err := k.admin.CreateTopic(ctx, 1, 1, map[string]*string{"message.timestamp.type": &stamped}, name)
	return err
}

// compare measures one relay in all cases.
func (k *kafkaCell) compare(ctx context.Context, which relay) {
	of := func(name string) row {
		return row{cell: "kafka", system: which.name, settings: which.settings, which: name}
	}
	err := k.with(ctx, which, func(r *relayRun) error {
		k.measure(ctx, of("idle"), func() (measure, error) { return r.idle(ctx) })
		if err := r.fill(ctx, k.events/2); err != nil { // Java compiles its code
			return err
		}
		if err := r.await(ctx, k.events/2); err != nil {
			return err
		}
		for _, c := range []struct {
			name string
			look func(ctx context.Context) (measure, error)
		}{{perSecondText(500), r.stream}, {"drain, warm", r.warm}, {"drain, cold", r.cold}} {
			end, err := r.end(ctx)
			if err != nil {
				return err
			}
			r.from += end
			k.measure(ctx, of(c.name), func() (measure, error) {
				m, err := c.look(ctx)
				if err != nil {
					err = fmt.Errorf("%w; the relay's log: %s", err, daemon.Tail(r.Path("log")))
				}
				return m, err
			})
		}
		return nil
	})
	if err != nil {
		k.measure(ctx, of("start"), func() (measure, error) { return nil, err })
	}
}

// idle measures a relay that has just started, for each second: its peak of memory is that of an idle one.
func (r *relayRun) idle(ctx context.Context) (measure, error) {
	statements := func() (int, error) {
		return queryOne[int](ctx, r.srv.admin, `select coalesce(sum(calls), 0) from pg_stat_statements as s join pg_database as d on d.oid = s.dbid where datname = '`+r.name+`'`)
	}
	if err := sleep(ctx, r.settled); err != nil {
		return nil, err
	}
	made, err := statements()
	if err != nil {
		return nil, err
	}
	m, err := r.costing(ctx, int(r.settled.Seconds()), func(m measure) error {
		if err := sleep(ctx, r.settled); err != nil {
			return err
		}
		now, err := statements()
		m[statementRate] = float64(now-made) / r.settled.Seconds()
		m[peakMiB] = peakMemory(r.clientPID)
		return err
	})
	delete(m, brokerCPU) // it is what was taken off
	return m, err
}

// stream produces at a steady rate.
func (r *relayRun) stream(ctx context.Context) (measure, error) {
	n := int(500 * r.kafka.Seconds())
	var begun []time.Time
	m, err := r.costing(ctx, n, func(measure) (err error) {
		begun, _, err = produceAt(ctx, 500, n, func(ctx context.Context, n int) error { return r.add(ctx, payload(n)) })
		return errors.Join(err, r.await(ctx, n))
	})
	if err != nil {
		return nil, err
	}
	records, err := r.records(ctx, n, m)
	if err != nil {
		return nil, err
	}
	var waits []float64
	for i, record := range records {
		waits = append(waits, max(0, float64(record.Timestamp.Sub(begun[i]))/1e6)) // Kafka cuts what is below a millisecond off
	}
	m.waits(waits)
	return m, nil
}

// warm has a backlog that is committed while the relay stands still.
func (r *relayRun) warm(ctx context.Context) (measure, error) {
	r.Pause()
	m, err := r.drain(ctx, func() error { r.Resume(); return nil })
	r.Resume() // else it would not end
	return m, err
}

// cold has a backlog that is committed while no relay runs, and its start counts.
func (r *relayRun) cold(ctx context.Context) (measure, error) {
	if err := r.stop(ctx); err != nil {
		return nil, err
	}
	return r.drain(ctx, func() error { return r.start(ctx) })
}

// drain commits a backlog, and measures from when the relay begins to the last record.
func (r *relayRun) drain(ctx context.Context, begin func() error) (measure, error) {
	n := r.events
	inserts, err := r.costing(ctx, n, func(measure) error { return r.fill(ctx, n) })
	if err != nil {
		return nil, err
	}
	began := time.Now()
	m, err := r.costing(ctx, n, func(m measure) error {
		if err := begin(); err != nil {
			return err
		}
		if err := r.await(ctx, n); err != nil {
			return err
		}
		m[peakMiB] = peakMemory(r.clientPID)
		_, _, err := r.until(ctx, r.relay.settled)
		return err
	})
	if err != nil {
		return nil, err
	}
	records, err := r.records(ctx, n, m)
	if err != nil {
		return nil, err
	}
	last := began
	for _, record := range records {
		if record.Timestamp.After(last) {
			last = record.Timestamp
		}
	}
	m[perSecond] = float64(n) / last.Sub(began).Seconds()
	m[walInsert] = inserts[walWork]
	return m, nil
}
