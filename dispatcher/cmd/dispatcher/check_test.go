package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	amqp "github.com/rabbitmq/amqp091-go"
	goredis "github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	hackkafka "github.com/outbox-operator/outbox-operator/hack/servers/kafka"
	hacknats "github.com/outbox-operator/outbox-operator/hack/servers/nats"
	"github.com/outbox-operator/outbox-operator/hack/servers/rabbitmq"
	hackredis "github.com/outbox-operator/outbox-operator/hack/servers/redis"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// check reports the isolation level of transactions: the login's default, where the dispatcher cannot set another, with the
// remedy.
func TestCheckReportsTheIsolationLevel(t *testing.T) {
	t.Parallel()
	srv := pgtest.Server(t)
	o := newOutbox(t, srv.DSN("postgres")).migrated(t)
	file := o.file(t, o.dispatcher, dispatching("{log: {}}"))
	o.exec(t, "alter role "+o.dispatcher+" set default_transaction_isolation = 'serializable'")
	run(t, "", "check", "-f", file).ok(t, "ok   isolation: read committed, set by the dispatcher: the default of "+o.dispatcher+" is serializable\n")

	o.exec(t, "alter database postgres set default_transaction_isolation = 'serializable'")
	check(t, os.WriteFile(filepath.Join(o.dir, o.dispatcher), []byte(pgtest.Bouncer(t, srv).DSN("postgres")), 0o600))
	run(t, "", "check", "-f", file).ok(t, "WARN isolation: transactions of ", " run at serializable behind the connection pooler", "run: alter role ")
}

// A reachable destination lacks the configured topic, stream or table: check reports it, and no event spends an attempt.
//
// CONTRACT: C-32
func TestCheckFailsWithoutTheConfiguredPlace(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Empty(t)).migrated(t)
	o.enqueue(t, 1)
	for sink, open := range map[string]func(t *testing.T) (yaml, text string){
		"Kafka": func(t *testing.T) (yaml, text string) {
			b, err := hackkafka.Start(t.Context(), hackkafka.Options{})
			started(t, b, err, hackkafka.ErrMissing)
			return fmt.Sprintf("{kafka: {brokers: ['%s'], topic: typo}}", b.Address(hackkafka.Plain)), "topic typo at "
		},
		"NATS": func(t *testing.T) (yaml, text string) {
			s, err := hacknats.Start(t.Context(), hacknats.Options{})
			started(t, s, err, nil)
			return fmt.Sprintf("{nats: {servers: ['%s'], subject: typo}}", s.URL()), "subject typo at "
		},
		"Redis": func(t *testing.T) (yaml, text string) {
			s, err := hackredis.Start(t.Context(), hackredis.Options{})
			started(t, s, err, hackredis.ErrMissing)
			c := goredis.NewClient(&goredis.Options{Addr: s.Address})
			check(t, c.Set(t.Context(), "typo", "text", 0).Err())
			check(t, c.Close())
			return fmt.Sprintf("{redis: {addresses: ['%s'], stream: typo}}", s.Address), "the key holds a string, which is not a stream"
		},
	} {
		t.Run(sink, func(t *testing.T) {
			yaml, text := open(t)
			file := o.file(t, o.dispatcher, dispatching(yaml))
			run(t, "", "check", "-f", file).ended(t, 1, "FAIL sink: ", text, "dispatcher: 1 of 5 checks failed")
			run(t, "", "once", "-f", file).ended(t, 1, text)
			if n := o.count(t, "status = 'pending' and attempts = 0"); n != 1 {
				t.Error("the event spent an attempt")
			}
		})
	}
}

// The file names a destination for each of its topics: check reports the one that is missing, with the remedy.
func TestCheckFailsWithoutAPlaceOfATopic(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Empty(t)).migrated(t)
	for sink, test := range map[string]struct {
		open func(t *testing.T) (yaml string)
		want []string
	}{
		"Kafka": {func(t *testing.T) string {
			b, err := hackkafka.Start(t.Context(), hackkafka.Options{})
			started(t, b, err, hackkafka.ErrMissing)
			client, err := kgo.NewClient(kgo.SeedBrokers(b.Address(hackkafka.Plain)))
			check(t, err)
			defer client.Close()
			_, err = kadm.NewClient(client).CreateTopic(t.Context(), 1, 1, nil, "orders")
			check(t, err)
			return fmt.Sprintf("{kafka: {brokers: ['%s']}}", b.Address(hackkafka.Plain))
		}, []string{"FAIL sink: topic payments at ", "create it, as with kafka-topics.sh --create --topic payments"}},
		"NATS": {func(t *testing.T) string {
			s, err := hacknats.Start(t.Context(), hacknats.Options{})
			started(t, s, err, nil)
			makeStream(t, s.URL(), "orders")
			return fmt.Sprintf("{nats: {servers: ['%s']}}", s.URL())
		}, []string{"FAIL sink: subject payments at ", "create one that captures it"}},
		"RabbitMQ": {func(t *testing.T) string {
			b, err := rabbitmq.Start(t.Context(), rabbitmq.Options{
				Users: map[string]string{"outbox": secret}, Permissions: map[string][3]string{"outbox": {".*", ".*", ".*"}},
			})
			started(t, b, err, rabbitmq.ErrMissing)
			for name, text := range map[string]string{"user": "outbox", "password": secret} {
				check(t, os.WriteFile(filepath.Join(o.dir, name), []byte(text), 0o600))
			}
			conn, err := amqp.Dial(fmt.Sprintf("amqp://outbox:%s@%s", secret, b.Address(rabbitmq.Plain)))
			check(t, err)
			defer func() { check(t, conn.Close()) }()
			channel, err := conn.Channel()
			check(t, err)
			_, err = channel.QueueDeclare("orders", true, false, false, false, nil)
			check(t, err)
			return fmt.Sprintf("{rabbitmq: {addresses: ['%[1]s']}, auth: {type: Plain, usernameFile: %[2]s/user, secretFile: %[2]s/password}}", b.Address(rabbitmq.Plain), o.dir)
		}, []string{`FAIL sink: `, `"payments"`, "does not exist; declare it"}},
	} {
		t.Run(sink, func(t *testing.T) {
			to := test.open(t)
			yaml := dispatching(to)
			want := append(test.want, "ok   sink: the destination responds", "ok   sink: 1 of 2 destinations of the file are there: orders\n", "dispatcher: 1 of 7 checks failed")
			run(t, "", "check", "-f", o.file(t, o.dispatcher, yaml+"topics: [orders, payments]\n")).ended(t, 1, want...)
			routed := dispatching(strings.TrimSuffix(to, "}") + `, routes: [{topics: [returns], to: '"orders"'}, {to: 'event.type == "x" ? "x" : "payments"'}]}`)
			run(t, "", "check", "-f", o.file(t, o.dispatcher, routed)).ok(t, "ok   sink: 1 of 1 destinations of the file are there: orders\n")
		})
	}
}

// makeStream makes a stream of NATS that takes the subject of its name.
func makeStream(t *testing.T, url, name string) {
	t.Helper()
	conn, err := nats.Connect(url)
	check(t, err)
	defer conn.Close()
	js, err := jetstream.New(conn)
	check(t, err)
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{name}})
	check(t, err)
}

// A destination that takes smaller messages than enqueue is warned of.
func TestCheckWarnsOfSmallMessages(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Empty(t)).migrated(t)
	for limit, want := range map[string]string{"1MB": "WARN sink: it takes messages of 1048576 bytes (the server's max_payload)", "2MB": ""} {
		s, err := hacknats.Start(t.Context(), hacknats.Options{Settings: "max_payload: " + limit + "\n"})
		started(t, s, err, nil)
		makeStream(t, s.URL(), "orders")
		file := o.file(t, o.dispatcher, dispatching(fmt.Sprintf("{nats: {servers: ['%s'], subject: orders}}", s.URL())))
		result := run(t, "", "check", "-f", file)
		result.ok(t, "ok   sink: ", want)
		if want == "" && strings.Contains(result.out, "WARN") {
			t.Errorf("a limit of 2 MB is large enough, and check warns:\n%s", result.out)
		}
	}
}

// started is a server of this test, which ends with it.
func started(t *testing.T, s interface{ Stop(context.Context) error }, err, missing error) {
	t.Helper()
	need.Server(t, err, missing)
	t.Cleanup(func() { check(t, s.Stop(context.Background())) })
}
