package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/hack/internal/daemon"
	"github.com/outbox-operator/outbox-operator/hack/servers/kafka"
)

// debeziumJars are the runtime dependencies of org.apache.kafka:connect-runtime:4.1.1, of
// io.debezium:debezium-connector-postgres:3.6.1.Final and of org.slf4j:slf4j-simple:1.7.36.
//
//go:embed debezium/jars.sha256
var debeziumJars string

// setting is a property of the connector, with the page that names it.
type setting struct{ name, value, source string }

// tuning is for short waits and many events, by the properties that the documentation of each has for that.
var tuning = []setting{
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

// debeziumRelay is Kafka Connect, standalone, with one connector.
func debeziumRelay(name string, added []setting) relay {
	text := "Debezium 3.6.1 in Kafka Connect 4.1 standalone, StringConverter, [EventRouter](" + pageOfRouter + "); the rest default"
	for _, source := range []string{pageOfPostgres, pageOfProducer} {
		var chosen []string
		for _, t := range added {
			if t.source == source {
				chosen = append(chosen, t.name+" "+t.value)
			}
		}
		if len(chosen) > 0 {
			text += "; " + strings.Join(chosen, ", ") + " ([here](" + source + "))"
		}
	}
	return relay{
		name: name, settings: text,
		insert: `insert into outboxevent (id, aggregatetype, aggregateid, type, payload)
			select id, $1, id::text, 'created', p::jsonb from (select gen_random_uuid() as id, p from unnest($2::text[]) as p) as e`,
		ready:   `select exists (select from pg_replication_slots where database = current_database() and active and confirmed_flush_lsn is not null)`,
		settled: `select true`,
		schema: func(ctx context.Context, dsn string) error {
			conn, err := pgx.Connect(ctx, dsn)
			if err != nil {
				return err
			}
			defer conn.Close(ctx)
			_, err = conn.Exec(ctx, `create table outboxevent (id uuid primary key, aggregatetype varchar(255) not null,
				aggregateid varchar(255) not null, type varchar(255) not null, payload jsonb)`)
			return err
		},
		command: func(r *relayRun) ([]string, error) {
			worker, connector, err := r.connect(added)
			// The options of java are those of Kafka's own bin/connect-standalone.sh.
			return []string{
				"java", "-Xms256M", "-Xmx2G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
				"-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
				"-cp", strings.Join(r.jars, ":"), "org.apache.kafka.connect.cli.ConnectStandalone", worker, connector,
			}, err
		},
	}
}

// connect writes the files of Kafka Connect: of the worker, and of the connector.
func (r *relayRun) connect(added []setting) (worker, connector string, err error) {
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
		"key.converter": text, "value.converter": text, "offset.storage.file.filename": r.Path("offsets"),
	}
	connectors := map[string]string{
		"name": r.topic, "connector.class": "io.debezium.connector.postgresql.PostgresConnector", "tasks.max": "1",
		"database.hostname": db.Host, "database.port": strconv.Itoa(int(db.Port)), "database.dbname": db.Database,
		"database.user": db.User, "database.password": db.Password,
		"topic.prefix": r.topic, "plugin.name": "pgoutput", "slot.name": r.topic, "table.include.list": "public.outboxevent",
		"transforms": "outbox", "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
		"transforms.outbox.route.topic.replacement": "${routedByValue}",
	}
	for _, s := range added {
		connectors[s.name] = s.value
	}
	worker, connector = r.Path("worker"), r.Path("connector")
	return worker, connector, errors.Join(writeProperties(worker, workers), writeProperties(connector, connectors))
}

func writeProperties(path string, settings map[string]string) error {
	var lines strings.Builder
	for name, value := range settings {
		fmt.Fprintf(&lines, "%s=%s\n", name, value)
	}
	return os.WriteFile(path, []byte(lines.String()), 0o600)
}
