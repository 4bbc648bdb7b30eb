package main

import (
	"context"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	natsclient "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	amqp "github.com/rabbitmq/amqp091-go"
	goredis "github.com/redis/go-redis/v9"

	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/postgressink"
	"github.com/outbox-operator/outbox-operator/hack/servers/nats"
	"github.com/outbox-operator/outbox-operator/hack/servers/rabbitmq"
	"github.com/outbox-operator/outbox-operator/hack/servers/redis"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// rotation is a destination whose login changes while events are delivered.
type rotation struct {
	sink          string // of the file
	before, after map[string]string
	// rotate makes the destination take the new login alone, and disconnects its clients.
	rotate func(t *testing.T)
}

const older, newer = "older-" + secret, "newer-" + secret

// rotations are the destinations whose logins are in the mounted files. Package httpsink has its own.
var rotations = map[string]func(t *testing.T, m mounted, o *outbox) rotation{
	"nats":     rotateNATS,
	"postgres": rotatePostgres,
	"rabbitmq": rotateRabbitMQ,
	"redis":    rotateRedis,
}

// A login that is rotated is read by the process that runs: events wait while the old one is refused, none is dead
// and none is lost. The files are swapped as the kubelet does it.
//
// CONTRACT: C-102
func TestRotatedLoginLosesNoEvent(t *testing.T) {
	t.Parallel()
	for name, of := range rotations {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := installed(t)
			m := mounted(t.TempDir())
			r := of(t, m, o)
			m.set(t, r.before)
			p := start(t, o.file(t, o.dispatcher, dispatching(r.sink)+"delivery: {backoff: {base: 100ms, max: 1s}}\n"))
			o.enqueue(t, 5)
			await(t, "the first events are delivered", func() bool { return o.count(t, "status = 'delivered'") == 5 })

			r.rotate(t)
			o.enqueue(t, 5)
			await(t, "the old login is refused", func() bool { return p.status(t).Sink.State != status.Reachable })
			m.set(t, r.after)
			await(t, "all is delivered", func() bool { return o.count(t, "status = 'delivered'") == 10 })
			p.ready(t)
			if n := o.count(t, "status <> 'delivered'"); n != 0 {
				t.Errorf("%d events are not delivered", n)
			}
		})
	}
}

// The same for the outbox's own database, whose connections outlive the change of the password.
//
// CONTRACT: C-102
func TestDatabasePasswordIsRotated(t *testing.T) {
	t.Parallel()
	o := installed(t)
	p := start(t, o.file(t, o.dispatcher, dispatching("{log: {}}")))
	o.enqueue(t, 5)
	await(t, "the first events are delivered", func() bool { return o.count(t, "status = 'delivered'") == 5 })
	o.exec(t, "alter role "+o.dispatcher+" password '"+newer+"'")
	o.enqueue(t, 5)
	await(t, "the connections are used", func() bool { return o.count(t, "status = 'delivered'") == 10 })
	o.exec(t, "select pg_terminate_backend(pid) from pg_stat_activity where usename = '"+o.dispatcher+"'")
	o.enqueue(t, 5)
	p.unready(t, "database: AuthenticationFailed: ")
	o.login(t, o.dispatcher, newer)
	await(t, "all is delivered", func() bool { return o.count(t, "status = 'delivered' and attempts = 1") == 15 })
	p.ready(t)
}

func rotateNATS(t *testing.T, m mounted, _ *outbox) rotation {
	with := func(password string) nats.Options {
		return nats.Options{Settings: fmt.Sprintf("authorization: {user: outbox, password: %q}", password)}
	}
	server, err := nats.Start(t.Context(), with(older))
	check(t, err)
	t.Cleanup(func() { check(t, server.Stop(context.Background())) })
	conn, err := natsclient.Connect(server.URL(), natsclient.UserInfo("outbox", older))
	check(t, err)
	defer conn.Close()
	js, err := jetstream.New(conn)
	check(t, err)
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders"}})
	check(t, err)
	return rotation{
		sink: fmt.Sprintf("{nats: {servers: ['%s']}, auth: {type: Basic, usernameFile: %s, secretFile: %s}}",
			server.URL(), m.file("username"), m.file("password")),
		before: map[string]string{"username": "outbox", "password": older}, after: map[string]string{"username": "outbox", "password": newer},
		rotate: func(t *testing.T) { check(t, server.Configure(with(newer))) },
	}
}

func rotatePostgres(t *testing.T, m mounted, _ *outbox) rotation {
	u, err := url.Parse(pgtest.Empty(t))
	check(t, err)
	pool, role := pgtest.Open(t, u.String()), "inbox_"+filepath.Base(u.Path)
	for _, sql := range []string{fmt.Sprintf("create role %s login password '%s'", role, older), postgressink.Table, "grant select, insert on public.inbox_events to " + role} {
		pgtest.Exec(pool, sql)
	}
	pgtest.DropRole(t, pool.Pool, role)
	dsn := func(password string) map[string]string {
		to := *u
		to.User = url.UserPassword(role, password)
		return map[string]string{"dsn": to.String()}
	}
	return rotation{
		sink:   fmt.Sprintf("{postgres: {dsnFile: %s}}", m.file("dsn")),
		before: dsn(older), after: dsn(newer),
		rotate: func(*testing.T) {
			pgtest.Exec(pool, fmt.Sprintf("alter role %s password '%s'", role, newer))
			pgtest.Exec(pool, "select pg_terminate_backend(pid) from pg_stat_activity where usename = '"+role+"'")
		},
	}
}

func rotateRabbitMQ(t *testing.T, m mounted, _ *outbox) rotation {
	broker, err := rabbitmq.Start(t.Context(), rabbitmq.Options{
		Users: map[string]string{"outbox": older}, Permissions: map[string][3]string{"outbox": {".*", ".*", ".*"}},
	})
	need.Server(t, err, rabbitmq.ErrMissing)
	t.Cleanup(func() { check(t, broker.Stop(context.Background())) })
	address := broker.Address(rabbitmq.Plain)
	conn, err := amqp.Dial("amqp://" + url.UserPassword("outbox", older).String() + "@" + strings.TrimPrefix(address, "amqp://"))
	check(t, err)
	defer func() { check(t, conn.Close()) }()
	channel, err := conn.Channel()
	check(t, err)
	_, err = channel.QueueDeclare("orders", true, false, false, false, nil)
	check(t, err)
	return rotation{
		sink: fmt.Sprintf("{rabbitmq: {addresses: ['%s']}, auth: {type: Plain, usernameFile: %s, secretFile: %s}}",
			address, m.file("username"), m.file("password")),
		before: map[string]string{"username": "outbox", "password": older}, after: map[string]string{"username": "outbox", "password": newer},
		rotate: func(t *testing.T) {
			for _, args := range [][]string{{"change_password", "outbox", newer}, {"close_all_user_connections", "outbox", "rotated"}} {
				_, err := broker.Control(t.Context(), args...)
				check(t, err)
			}
		},
	}
}

func rotateRedis(t *testing.T, m mounted, _ *outbox) rotation {
	server, err := redis.Start(t.Context(), redis.Options{})
	need.Server(t, err, redis.ErrMissing)
	t.Cleanup(func() { check(t, server.Stop(context.Background())) })
	admin := goredis.NewClient(&goredis.Options{Addr: server.Address})
	t.Cleanup(func() { check(t, admin.Close()) })
	allow := func(t *testing.T, password string) {
		check(t, admin.Do(t.Context(), "acl", "setuser", "outbox", "on", "resetpass", ">"+password, "~*", "+@all").Err())
	}
	allow(t, older)
	return rotation{
		sink: fmt.Sprintf("{redis: {addresses: ['%s']}, auth: {type: Basic, usernameFile: %s, secretFile: %s}}",
			server.Address, m.file("username"), m.file("password")),
		before: map[string]string{"username": "outbox", "password": older}, after: map[string]string{"username": "outbox", "password": newer},
		rotate: func(t *testing.T) {
			allow(t, newer)
			check(t, admin.Do(t.Context(), "client", "kill", "user", "outbox").Err())
		},
	}
}
