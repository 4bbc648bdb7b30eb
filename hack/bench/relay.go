package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outbox-operator/outbox-operator/dispatcher/client/producer"
	"github.com/outbox-operator/outbox-operator/hack/internal/daemon"
	"github.com/outbox-operator/outbox-operator/hack/servers/kafka"
	"github.com/outbox-operator/outbox-operator/hack/testing/objects"
)

// relay is a program that carries an outbox to Kafka: the dispatcher, or Debezium.
type relay struct {
	name, settings string
	// schema makes the outbox. command writes the relay's files, and returns the command that runs it until SIGTERM.
	schema  func(ctx context.Context, dsn string) error
	command func(r *relayRun) ([]string, error)
	// insert is SQL that adds an event for each payload of the array $2, to the topic $1.
	insert string
	// wake sends a wake-up after each commit.
	wake bool
	// ready is SQL for whether a relay that runs sees what is inserted from now on, settled for whether it has written
	// back the outcome of all.
	ready, settled string
}

// dispatcherRelay is the dispatcher's binary, with what is added to the specs of its OutboxDispatcher and its Outbox.
func (k *kafkaCell) dispatcherRelay(name, text string, added, toOutbox map[string]any) relay {
	return relay{
		name: name, settings: text,
		insert: `insert into outbox.outbox_events (id, namespace, topic, payload)
			select gen_random_uuid(), '` + namespace + `', $1, p::jsonb from unnest($2::text[]) as p`,
		ready: `select true`, settled: `select not exists (select from outbox.outbox_events where live)`,
		schema: outboxSetup,
		command: func(r *relayRun) ([]string, error) {
			dispatcher := map[string]any{
				"namespace": namespace, "sink": map[string]any{"kafka": map[string]any{"brokers": []string{k.broker.Address(kafka.Plain)}}},
			}
			maps.Copy(dispatcher, added)
			outbox := map[string]any{"secretRef": map[string]any{"name": "bench"}}
			maps.Copy(outbox, toOutbox)
			file := r.Path("dispatcher.yaml")
			return []string{k.binary, "run", "-f", file, "--listen", "127.0.0.1:0"}, errors.Join(
				objects.Secret(r.Dir, "bench", "dsn", r.dsn()), objects.Write(file, "bench", dispatcher, outbox))
		},
	}
}

// relayRun is one relay between a database and a topic of its own.
type relayRun struct {
	*kafkaCell
	*database     // with the relay as its client
	daemon.Server // the relay's process, and its files
	relay         relay
	topic         string
	from          int // records before it are not looked at
	pool          *pgxpool.Pool
	waker         *producer.Waker
}

// with runs a relay with a database and a topic of its own.
func (k *kafkaCell) with(ctx context.Context, which relay, look func(r *relayRun) error) (err error) {
	db, err := k.srv.database(ctx, which.schema)
	if err != nil {
		return err
	}
	defer db.drop()
	db.brokerPID, db.idle = k.broker.Pid(), k.idleBroker
	r := &relayRun{kafkaCell: k, database: db, relay: which, topic: db.name}
	if err := k.addTopic(ctx, r.topic); err != nil {
		return err
	}
	if r.pool, err = producing(ctx, db.dsn()); err != nil {
		return err
	}
	defer r.pool.Close()
	r.waker = producer.NewWaker(r.pool, producer.WakerOptions{})
	if err := r.launch(ctx); err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx)
	return errors.Join(look(r), r.stop(ctx), r.Remove())
}

// launch runs the relay, and returns when it would deliver.
func (r *relayRun) launch(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if r.Server, err = daemon.NewServer("outbox-bench-*"); err != nil {
		return err
	}
	var argv []string
	prepare := func() (err error) { argv, err = r.relay.command(r); return err }
	err = r.Launch(ctx, prepare, daemon.Program{
		Name: r.relay.name, Command: func() *exec.Cmd { return exec.Command(argv[0], argv[1:]...) },
		Ready: func(ctx context.Context) error {
			ok, err := queryOne[bool](ctx, r.conn, r.relay.ready)
			if err == nil && !ok {
				err = errors.New("it does not see the outbox yet")
			}
			return err
		},
	})
	if err == nil {
		r.clientPID = r.Pid()
	}
	return err
}

// start runs the relay again.
func (r *relayRun) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	err := r.Restart(ctx)
	if err == nil {
		r.clientPID = r.Pid()
	}
	return err
}

// stop ends the relay in order, and waits until the database has seen it.
func (r *relayRun) stop(ctx context.Context) error {
	end, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	r.Shutdown(end)
	r.clientPID = 0
	_, _, err := r.until(ctx, `select not exists (select from pg_replication_slots where active and database = current_database())`)
	return err
}

// add adds events, in one transaction.
func (r *relayRun) add(ctx context.Context, payloads ...[]byte) error {
	texts := make([]string, len(payloads))
	for i, p := range payloads {
		texts[i] = string(p)
	}
	_, err := r.pool.Exec(ctx, r.relay.insert, r.topic, texts)
	if err == nil && r.relay.wake {
		r.waker.Wake(namespace)
	}
	return err
}

// fill adds n events, 500 in a transaction, over two connections.
func (r *relayRun) fill(ctx context.Context, n int) error {
	return inParts(ctx, n, 500, func(ctx context.Context, from, to int) error {
		var payloads [][]byte
		for n := from; n < to; n++ {
			payloads = append(payloads, payload(n))
		}
		return r.add(ctx, payloads...)
	})
}

// end is how many records the topic has from r.from on.
func (r *relayRun) end(ctx context.Context) (int, error) {
	ends, err := r.admin.ListEndOffsets(ctx, r.topic)
	o, _ := ends.Lookup(r.topic, 0)
	return int(o.Offset) - r.from, errors.Join(err, ends.Error())
}

// await waits until the topic has n records from r.from on. No consumer takes part, which would cost the broker as much again.
func (r *relayRun) await(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		if end, err := r.end(ctx); err != nil || end >= n {
			return err
		}
		if err := sleep(ctx, 200*time.Millisecond); err != nil {
			return fmt.Errorf("wait for %d records: %w", n, err)
		}
	}
}

// records reads the first record of each of n events, by their numbers, and counts those that came again.
func (r *relayRun) records(ctx context.Context, n int, m measure) (map[int]*kgo.Record, error) {
	first := map[int]*kgo.Record{}
	m[doubled] = 0
	err := r.read(ctx, func(record *kgo.Record) (all bool, err error) {
		number, err := number(record.Value)
		if first[number] != nil {
			m[doubled]++
		} else {
			first[number] = record
		}
		return len(first) == n, err
	})
	if err != nil {
		err = fmt.Errorf("%d of %d events have a record: %w", len(first), n, err)
	}
	return first, err
}

// read hands over the topic's records from r.from on, until take has all.
func (r *relayRun) read(ctx context.Context, take func(*kgo.Record) (all bool, err error)) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	reader, err := kgo.NewClient(kgo.SeedBrokers(r.broker.Address(kafka.Plain)),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{r.topic: {0: kgo.NewOffset().At(int64(r.from))}}))
	if err != nil {
		return err
	}
	defer reader.Close()
	for all := false; !all; {
		fetches := reader.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return err
		}
		for _, record := range fetches.Records() {
			if all, err = take(record); err != nil {
				return err
			}
		}
	}
	return nil
}
