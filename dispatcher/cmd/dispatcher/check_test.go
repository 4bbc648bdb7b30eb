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

// place is a destination of which one place is missing.
type place struct {
	// sink is the YAML of one that has the place orders, and none that is named payments.
	sink string
	// typo names the missing place in the sink, and missing is what the errors say of it then; empty where a sink has none.
	typo, missing string
	// remedy is what check says of payments; empty where it lists no places.
	remedy []string
}

// A reachable destination lacks the configured topic, stream or table, or that of one of the file's topics: check reports it
// with the remedy, and no event spends an attempt.
//
// CONTRACT: C-32
func TestCheckFailsWithoutAPlace(t *testing.T) {
	t.Parallel()
	o := installed(t)
	o.enqueue(t, 1)
	for name, open := range map[string]func(*testing.T, *outbox) place{"Kafka": kafkaPlace, "NATS": natsPlace, "Redis": redisPlace, "RabbitMQ": rabbitPlace} {
		t.Run(name, func(t *testing.T) {
			p := open(t, o)
			if p.missing != "" {
				file := o.file(t, o.dispatcher, dispatching(strings.Replace(p.sink, "}", p.typo+"}", 1)))
				run(t, "", "check", "-f", file).ended(t, 1, "FAIL sink: ", p.missing, "dispatcher: 1 of 5 checks failed")
				run(t, "", "once", "-f", file).ended(t, 1, p.missing)
				if n := o.count(t, "status = 'pending' and attempts = 0"); n != 1 {
					t.Error("the event spent an attempt")
				}
			}
			if p.remedy != nil {
				want := append(p.remedy, "FAIL sink: ", "ok   sink: the destination responds", "ok   sink: 1 of 2 destinations of the file are there: orders\n", "dispatcher: 1 of 7 checks failed")
				run(t, "", "check", "-f", o.file(t, o.dispatcher, dispatching(p.sink)+"topics: [orders, payments]\n")).ended(t, 1, want...)
				routed := dispatching(strings.TrimSuffix(p.sink, "}") + `, routes: [{topics: [returns], to: '"orders"'}, {to: 'event.type == "x" ? "x" : "payments"'}]}`)
				run(t, "", "check", "-f", o.file(t, o.dispatcher, routed)).ok(t, "ok   sink: 1 of 1 destinations of the file are there: orders\n")
			}
		})
	}
}

func kafkaPlace(t *testing.T, _ *outbox) place {
	b, err := hackkafka.Start(t.Context(), hackkafka.Options{ShortLived: true})
	started(t, b, err, hackkafka.ErrMissing)
	client, err := kgo.NewClient(kgo.SeedBrokers(b.Address(hackkafka.Plain)))
	check(t, err)
	defer client.Close()
	_, err = kadm.NewClient(client).CreateTopic(t.Context(), 1, 1, nil, "orders")
	check(t, err)
	return place{
		sink: fmt.Sprintf("{kafka: {brokers: ['%s']}}", b.Address(hackkafka.Plain)), typo: ", topic: typo", missing: "topic typo at ",
		remedy: []string{"FAIL sink: topic payments at ", "create it, as with kafka-topics.sh --create --topic payments"},
	}
}

func natsPlace(t *testing.T, _ *outbox) place {
	s, err := hacknats.Start(t.Context(), hacknats.Options{})
	started(t, s, err, nil)
	makeStream(t, s.URL(), "orders")
	return place{
		sink: fmt.Sprintf("{nats: {servers: ['%s']}}", s.URL()), typo: ", subject: typo", missing: "subject typo at ",
		remedy: []string{"FAIL sink: subject payments at ", "create one that captures it"},
	}
}

func redisPlace(t *testing.T, _ *outbox) place {
	s, err := hackredis.Start(t.Context(), hackredis.Options{})
	started(t, s, err, hackredis.ErrMissing)
	c := goredis.NewClient(&goredis.Options{Addr: s.Address})
	check(t, c.Set(t.Context(), "typo", "text", 0).Err())
	check(t, c.Close())
	return place{sink: fmt.Sprintf("{redis: {addresses: ['%s']}}", s.Address), typo: ", stream: typo", missing: "the key holds a string, which is not a stream"}
}

func rabbitPlace(t *testing.T, o *outbox) place {
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
	return place{
		sink:   fmt.Sprintf("{rabbitmq: {addresses: ['%[1]s']}, auth: {type: Plain, usernameFile: %[2]s/user, secretFile: %[2]s/password}}", b.Address(rabbitmq.Plain), o.dir),
		remedy: []string{`"payments"`, "does not exist; declare it"},
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
	o := installed(t)
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
