package main

import (
	"context"
	_ "embed"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outbox-operator/outbox-operator/hack/internal/daemon"
	"github.com/outbox-operator/outbox-operator/hack/internal/fetch"
	"github.com/outbox-operator/outbox-operator/hack/servers/kafka"
)

// debeziumJars are the runtime dependencies of org.apache.kafka:connect-runtime:4.1.1, of
// io.debezium:debezium-connector-postgres:3.6.1.Final and of org.slf4j:slf4j-simple:1.7.36.
//
//go:embed debezium/jars.sha256
var debeziumJars string

// The systems of the cell debezium, next to the dispatcher by default.
const (
	debeziumDefault = "Debezium 3.6, default"
	debeziumTuned   = "Debezium 3.6, tuned"
	debeziumSkips   = "Debezium 3.6, errors.tolerance=all"
	binaryTuned     = "dispatcher run, tuned"
)

// tuning is for short waits and many events, by the properties that the documentation of each has for that.
var tuning = []struct{ name, value, source string }{
	{"snapshot.mode", "no_data", pageOfPostgres},
	{"publication.autocreate.mode", "filtered", pageOfPostgres},
	{"poll.interval.ms", "1", pageOfPostgres},
	{"max.batch.size", "8192", pageOfPostgres},
	{"max.queue.size", "32768", pageOfPostgres},
	{"producer.override.linger.ms", "0", pageOfProducer},
	{"producer.override.batch.size", "262144", pageOfProducer},
	{"producer.override.compression.type", "snappy", pageOfProducer},
	{"producer.override.enable.idempotence", "true", pageOfProducer},
	{"producer.override.max.in.flight.requests.per.connection", "5", pageOfProducer},
}

const (
	pageOfRouter   = "https://debezium.io/documentation/reference/3.6/transformations/outbox-event-router.html"
	pageOfPostgres = "https://debezium.io/documentation/reference/3.6/connectors/postgresql.html"
	pageOfProducer = "https://kafka.apache.org/41/configuration/producer-configs/"
)

// runDebezium measures Debezium and the dispatcher in turn.
func runDebezium(ctx context.Context, b *bench) {
	jars, err := fetch.Java(ctx, debeziumJars)
	if err != nil {
		b.withoutCell(ctx, "debezium", err)
		return
	}
	logical := maps.Clone(settings)
	logical["wal_level"] = "logical"
	srv, err := startServer(ctx, logical)
	if err != nil {
		b.withoutCell(ctx, "debezium", err)
		return
	}
	defer srv.close()
	b.beforeKafka(ctx, "debezium", srv, func(k *kafkaCell) {
		if err := k.idle(ctx); err != nil {
			b.withoutCell(ctx, k.cell, err)
			return
		}
		relays := k.relays(jars)
		for range b.runs {
			for _, which := range relays {
				k.compare(ctx, which)
			}
		}
		if k.size.down == 0 {
			return
		}
		skips := debeziumRelay(debeziumSkips, jars, tuned("errors.tolerance", "all"))
		k.measure(ctx, skips, caseTooLarge, tooLarge)
		for _, which := range relays { // a broker that was started again is cold
			k.measure(ctx, which, "broker down for "+k.size.down.String(), func(ctx context.Context, r *kafkaRun) (measure, error) {
				return r.outage(ctx, 50, k.size.down)
			})
		}
	})
}

// relays are those that are compared: in a quick run one of Debezium and one of ours.
func (k *kafkaCell) relays(jars []string) []relay {
	relays := []relay{debeziumRelay(debeziumTuned, jars, tuned()), dispatcherRelay(k.builds[0], nil)}
	if k.size.down == 0 {
		return relays
	}
	best := dispatcherRelay(k.builds[0], map[string]any{
		"delivery":  map[string]any{"batchSize": 2000, "wakeUp": "Listen"},
		"retention": map[string]any{"delivered": "0s"},
		"message":   map[string]any{"format": "Plain", "headers": map[string]any{"id": "event.id"}}, // as Debezium's
	})
	best.name, best.wake = binaryTuned, true
	best.settings = "batchSize 2000, retention.delivered 0s, records as Debezium's (message.format Plain, the header id), wakeUp Listen and producer.Waker; the rest default"
	return append([]relay{debeziumRelay(debeziumDefault, jars, nil)}, append(relays, best)...)
}

// tuned are the settings of tuning, and one more.
func tuned(more ...string) map[string]string {
	s := map[string]string{}
	for _, t := range tuning {
		s[t.name] = t.value
	}
	if len(more) > 0 {
		s[more[0]] = more[1]
	}
	return s
}

// debeziumRelay is Kafka Connect, standalone, with one connector.
func debeziumRelay(name string, jars []string, added map[string]string) relay {
	text := "Kafka Connect 4.1 standalone, StringConverter, EventRouter (" + pageOfRouter + "); the rest default"
	for _, source := range []string{pageOfPostgres, pageOfProducer} {
		var chosen []string
		for _, t := range tuning {
			if t.source == source && added != nil {
				chosen = append(chosen, t.name+" "+t.value)
			}
		}
		if len(chosen) > 0 {
			text += "; " + strings.Join(chosen, ", ") + " (" + source + ")"
		}
	}
	return relay{
		name: name, settings: text, peer: true,
		insert: `insert into outboxevent (id, aggregatetype, aggregateid, type, payload)
			select id, $1, id::text, 'created', p::jsonb from (select gen_random_uuid() as id, p from unnest($2::text[]) as p) as e`,
		ready:   `select exists (select from pg_replication_slots where database = current_database() and active and confirmed_flush_lsn is not null)`,
		settled: `select true`,
		setup: func(ctx context.Context, r *kafkaRun) ([]string, error) {
			if err := r.exec(ctx, `create table outboxevent (id uuid primary key, aggregatetype varchar(255) not null,
				aggregateid varchar(255) not null, type varchar(255) not null, payload jsonb)`); err != nil {
				return nil, err
			}
			worker, connector, err := r.connect(added)
			// The options of java are those of Kafka's own bin/connect-standalone.sh.
			return []string{
				"java", "-Xms256M", "-Xmx2G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
				"-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
				"-cp", strings.Join(jars, ":"), "org.apache.kafka.connect.cli.ConnectStandalone", worker, connector,
			}, err
		},
	}
}

// connect writes the files of Kafka Connect: of the worker, and of the connector.
func (r *kafkaRun) connect(added map[string]string) (worker, connector string, err error) {
	port, err := daemon.FreePort()
	if err != nil {
		return "", "", err
	}
	db, err := pgx.ParseConfig(r.dsn())
	if err != nil {
		return "", "", err
	}
	const text = "org.apache.kafka.connect.storage.StringConverter"
	workers := map[string]string{
		"bootstrap.servers": r.broker.Address(kafka.Plain), "listeners": "http://127.0.0.1:" + strconv.Itoa(port),
		"key.converter": text, "value.converter": text, "offset.storage.file.filename": filepath.Join(r.dir, r.topic+".offsets"),
	}
	connectors := map[string]string{
		"name": r.topic, "connector.class": "io.debezium.connector.postgresql.PostgresConnector", "tasks.max": "1",
		"database.hostname": db.Host, "database.port": strconv.Itoa(int(db.Port)), "database.dbname": db.Database,
		"database.user": db.User, "database.password": db.Password,
		"topic.prefix": r.topic, "plugin.name": "pgoutput", "slot.name": r.topic, "table.include.list": "public.outboxevent",
		"transforms": "outbox", "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
		"transforms.outbox.route.topic.replacement": "${routedByValue}",
	}
	maps.Copy(connectors, added)
	worker, connector = filepath.Join(r.dir, r.topic+".worker"), filepath.Join(r.dir, r.topic+".connector")
	for path, settings := range map[string]map[string]string{worker: workers, connector: connectors} {
		var lines strings.Builder
		for _, name := range slices.Sorted(maps.Keys(settings)) {
			fmt.Fprintf(&lines, "%s=%s\n", name, settings[name])
		}
		if err := os.WriteFile(path, []byte(lines.String()), 0o600); err != nil {
			return "", "", err
		}
	}
	return worker, connector, nil
}

// idle warms the broker, and measures what it takes with nothing to do.
func (k *kafkaCell) idle(ctx context.Context) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(k.broker.Address(kafka.Plain)))
	if err != nil {
		return err
	}
	defer client.Close()
	if err := addTopic(ctx, kadm.NewClient(client), "tool"); err != nil {
		return err
	}
	if _, err := kafkaTool(ctx, k.broker, k.size.drain/2); err != nil { // a broker that has just started compiles its code
		return err
	}
	if err := sleep(ctx, k.size.pace/3); err != nil {
		return err
	}
	before, err := treeCPU(k.broker.Pid())
	if err != nil {
		return err
	}
	began := time.Now()
	if err := sleep(ctx, k.size.idle); err != nil {
		return err
	}
	after, err := treeCPU(k.broker.Pid())
	k.idleBroker = (after - before).Seconds() / time.Since(began).Seconds()
	k.say("an idle broker takes %.1f %% of a core", 100*k.idleBroker)
	return err
}
