package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outbox-operator/outbox-operator/dispatcher/producer"
	"github.com/outbox-operator/outbox-operator/hack/servers/kafka"
)

// relay is a program that carries an outbox to Kafka: the dispatcher, or Debezium.
type relay struct {
	name, settings string
	peer           bool
	// setup makes the outbox, and returns the command that runs the relay until SIGTERM.
	setup func(ctx context.Context, r *kafkaRun) ([]string, error)
	// insert is SQL that adds an event for each payload of the array $2, to the topic $1.
	insert string
	// wake sends a wake-up after each commit.
	wake bool
	// ready is SQL for whether a relay that runs sees what is inserted from now on, settled for whether it has written
	// back the outcome of all.
	ready, settled string
	// dead is SQL that counts dead letters. Defaults to none: the relay has no such thing.
	dead string
}

func (w relay) system() system { return system{Name: w.name, Settings: w.settings, Peer: w.peer} }

// dispatcherRelay is a dispatcher's binary, with its default file and what is added.
func dispatcherRelay(which build, added map[string]any) relay {
	return relay{
		name: which.name, settings: "all default, polling; one broker, one partition",
		insert: `insert into outbox.outbox_events (id, namespace, topic, payload)
			select gen_random_uuid(), '` + namespace + `', $1, p::jsonb from unnest($2::text[]) as p`,
		ready: `select true`, settled: `select not exists (select from outbox.outbox_events where live)`,
		dead: `select count(*) from outbox.outbox_events where status = 'dead'`,
		setup: func(ctx context.Context, r *kafkaRun) ([]string, error) {
			config := map[string]any{
				"name": "bench", "namespace": namespace, "database": map[string]any{"dsn": r.dsn()},
				"sink":   map[string]any{"kafka": map[string]any{"brokers": []string{r.broker.Address(kafka.Plain)}}},
				"server": map[string]any{"address": "127.0.0.1:0"},
			}
			maps.Copy(config, added)
			text, err := json.Marshal(config)
			if err != nil {
				return nil, err
			}
			file := filepath.Join(r.dir, r.topic+".yaml") // JSON is YAML
			if err := os.WriteFile(file, text, 0o600); err != nil {
				return nil, err
			}
			// The schema is the build's own.
			_, err = output(exec.CommandContext(ctx, which.path, "migrate", "up", "-f", file))
			return []string{which.path, "run", "-f", file}, err
		},
	}
}

// kafkaRun is one relay between a database and a topic of its own.
type kafkaRun struct {
	*database
	*kafkaCell
	relay  relay
	argv   []string
	admin  *kadm.Client
	topic  string
	from   int64 // records before it are not looked at
	pool   *pgxpool.Pool
	waker  *producer.Waker
	cmd    *exec.Cmd // nil: not running
	stderr *tail
}

// with runs a relay with a database and a topic of its own.
func (k *kafkaCell) with(ctx context.Context, which relay, look func(r *kafkaRun) error) (err error) {
	db, err := k.srv.database(ctx)
	if err != nil {
		return err
	}
	defer db.drop()
	r := &kafkaRun{database: db, kafkaCell: k, relay: which, topic: db.name}
	client, err := kgo.NewClient(kgo.SeedBrokers(k.broker.Address(kafka.Plain)))
	if err != nil {
		return err
	}
	defer client.Close()
	r.admin = kadm.NewClient(client)
	if err := addTopic(ctx, r.admin, r.topic); err != nil {
		return err
	}
	if r.argv, err = which.setup(ctx, r); err != nil {
		return fmt.Errorf("set up: %w", err)
	}
	pool, err := pgxpool.ParseConfig(db.dsn())
	if err != nil {
		return err
	}
	pool.MaxConns = producers + 1 // one for wake-ups
	if r.pool, err = pgxpool.NewWithConfig(ctx, pool); err != nil {
		return err
	}
	defer r.pool.Close()
	r.waker = producer.NewWaker(r.pool, producer.WakerOptions{})
	if err := r.start(ctx); err != nil {
		return err
	}
	err = look(r)
	if stopErr := r.stop(ctx); stopErr != nil || err != nil {
		err = errors.Join(err, stopErr, fmt.Errorf("the relay's log: %s", r.stderr))
	}
	return err
}

// addTopic makes a topic whose records have the time at which the broker appended them.
func addTopic(ctx context.Context, admin *kadm.Client, name string) error {
	stamped := "LogAppendTime"
	_, err := admin.CreateTopic(ctx, 1, 1, map[string]*string{"message.timestamp.type": &stamped}, name)
	return err
}

// start runs the relay, and returns when it would deliver.
func (r *kafkaRun) start(ctx context.Context) error {
	r.cmd, r.stderr = exec.Command(r.argv[0], r.argv[1:]...), &tail{}
	r.cmd.SysProcAttr = endWithParent()
	r.cmd.Stderr = r.stderr
	if err := r.cmd.Start(); err != nil {
		return err
	}
	if err := r.until(ctx, r.relay.ready); err != nil {
		return errors.Join(fmt.Errorf("wait for the relay to be ready: %w: %s", err, r.stderr), r.stop(ctx))
	}
	return nil
}

// stop ends the relay in order, and waits until the database has seen it.
func (r *kafkaRun) stop(ctx context.Context) error {
	if r.cmd == nil {
		return nil
	}
	process := r.cmd.Process
	_ = process.Signal(syscall.SIGTERM)
	late := time.AfterFunc(time.Minute, func() { _ = process.Kill() })
	defer late.Stop()
	err := r.cmd.Wait()
	if r.cmd = nil; r.relay.peer {
		err = nil // Java ends with the signal's code
	}
	return errors.Join(err, r.until(ctx, `select not exists (select from pg_replication_slots where active and database = current_database())`))
}

// until queries every 10 ms until it is true.
func (r *kafkaRun) until(ctx context.Context, sql string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	for {
		if ok, err := queryOne[bool](ctx, r.conn, sql); ok || err != nil {
			return err
		}
		if err := sleep(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
}

// add adds events, in one transaction.
func (r *kafkaRun) add(ctx context.Context, payloads ...[]byte) error {
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

// costs are what each of the three has used, in seconds of CPU time.
type costs struct {
	at                 time.Time
	broker, client, db float64
	wal                int64 // bytes
}

func (r *kafkaRun) costs(ctx context.Context) (costs, error) {
	broker, err := treeCPU(r.broker.Pid())
	if err != nil {
		return costs{}, err
	}
	var client time.Duration
	if r.cmd != nil {
		if client, err = treeCPU(r.cmd.Process.Pid); err != nil {
			return costs{}, err
		}
	}
	db, err := r.usage(ctx)
	return costs{time.Now(), broker.Seconds(), client.Seconds(), db.cpu.Seconds(), db.wal}, err
}

// spent is what n events cost, with the broker's share of idling taken off where it is known.
func (r *kafkaRun) spent(before, after costs, n int) measure {
	micros := func(seconds float64) float64 { return seconds * 1e6 / float64(n) }
	return measure{
		brokerCPU: micros(after.broker - before.broker - r.idleBroker*after.at.Sub(before.at).Seconds()),
		clientCPU: micros(after.client - before.client),
		dbCPU:     micros(after.db - before.db),
		walWork:   float64(after.wal-before.wal) / float64(n),
	}
}

// arrivals waits until each of the events 0 to n has a record from an offset on, or none came for 10 s. It returns the
// records, and how many events have none.
func (r *kafkaRun) arrivals(ctx context.Context, from int64, n int) (records []*kgo.Record, lost int, err error) {
	for size, since := int64(-1), time.Now(); ; {
		end, err := r.end(ctx)
		if err != nil {
			return nil, 0, err
		}
		if end != size {
			size, since = end, time.Now()
		}
		if idle := time.Since(since) > 10*time.Second; end-from >= int64(n) || idle {
			if records, _, err = r.consume(ctx, from); err != nil {
				return nil, 0, err
			}
			seen := map[int64]bool{}
			for _, record := range records {
				number, err := number(record.Value)
				if err != nil {
					return nil, 0, err
				}
				seen[number] = true
			}
			if lost = n - len(seen); lost == 0 || idle {
				return records, lost, nil
			}
		}
		if err := sleep(ctx, 200*time.Millisecond); err != nil {
			return nil, 0, err
		}
	}
}
