package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/postgressink"
	"github.com/outbox-operator/outbox-operator/hack/servers/nats"
	"github.com/outbox-operator/outbox-operator/hack/servers/rabbitmq"
	"github.com/outbox-operator/outbox-operator/hack/servers/redis"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// The outcomes of a case's events.
const (
	delivered   = "delivered"
	dead        = "dead"
	retried     = "retried" // again and again, without using up attempts
	unavailable = "unavailable"
)

// leak is a destination with secrets in all that it takes, and what becomes of its events.
type leak struct {
	sink, want string
	env        []string
	more       string // of the configuration
}

// bearer is a login with a token.
const bearer = "type: Token, secretRef: {name: planted, key: bearer}"

// leaks are the cases by name. The log sink is none: what it writes is what it delivers; copy has no login. dir is the
// Secret planted with the keys user, password, wrong, bearer and signing, each with the secret in it; unavailable kinds go to a closed
// port, or to a server that refuses them.
func leaks(t *testing.T, dir string) map[string]leak {
	closed := closedPort(t)
	const login, wrong = "usernameKey: user, secretRef: {name: planted}", "usernameKey: user, secretRef: {name: planted, key: wrong}"
	all := map[string]leak{
		"http": {sink: fmt.Sprintf("{http: {url: '%s', headers: [{name: x-tenant, value: plain}], signingSecretRef: {name: planted, key: signing}}, auth: {%s}}",
			consumer(t, http.StatusOK), bearer), want: delivered},
		"http that repeats what it gets": {sink: fmt.Sprintf("{http: {url: '%s'}, auth: {type: Basic, %s}}", consumer(t, http.StatusBadRequest), login), want: dead},
		"http that refuses the token":    {sink: fmt.Sprintf("{http: {url: '%s'}, auth: {%s}}", consumer(t, http.StatusUnauthorized), bearer), want: unavailable},
		"http closed":                    {sink: fmt.Sprintf("{http: {url: 'http://%s/%s'}, auth: {%s}}", closed, "events", bearer), want: unavailable},
		"http without its file":          {sink: fmt.Sprintf("{http: {url: 'http://%s'}, auth: {type: Token, secretRef: {name: planted, key: none}}}", closed), want: unavailable},
	}
	brokers := kafka(t)
	for name, sink := range map[string]string{
		"kafka":                fmt.Sprintf("{kafka: {brokers: ['%s']}, auth: {type: Plain, %s}}", brokers, login),
		"kafka wrong password": fmt.Sprintf("{kafka: {brokers: ['%s']}, auth: {type: Plain, %s}}", brokers, wrong),
		"kafka SCRAM refused":  fmt.Sprintf("{kafka: {brokers: ['%s']}, auth: {type: ScramSHA256, %s}}", brokers, wrong),
		"kafka OAUTHBEARER":    fmt.Sprintf("{kafka: {brokers: ['%s']}, timeout: 2s, auth: {type: OAuthBearer, secretRef: {name: planted, key: bearer}}}", brokers),
		"kafka closed":         fmt.Sprintf("{kafka: {brokers: ['%s']}, auth: {type: Plain, %s}}", closed, login),
		"nats closed":          fmt.Sprintf("{nats: {servers: ['nats://%s']}, auth: {type: Basic, %s}}", closed, login),
		"nats token closed":    fmt.Sprintf("{nats: {servers: ['nats://%s']}, auth: {%s}}", closed, bearer),
		"nats nkey of no use":  fmt.Sprintf("{nats: {servers: ['nats://%s']}, auth: {type: NKey, secretRef: {name: planted, key: bearer}}}", closed),
		"redis closed":         fmt.Sprintf("{redis: {addresses: ['%s']}, auth: {type: Basic, %s}}", closed, login),
		"rabbitmq closed":      fmt.Sprintf("{rabbitmq: {addresses: ['%s']}, auth: {type: Plain, %s}}", closed, login),
	} {
		all[name] = leak{sink: sink, want: unavailable}
	}
	kafka := all["kafka"]
	kafka.want = delivered
	all["kafka"] = kafka
	maps.Copy(all, clouds(closed))
	maps.Copy(all, servers(t, login, wrong))
	maps.Copy(all, inboxes(t, dir, closed))
	maps.Copy(all, pipelines(fmt.Sprintf("{http: {url: '%s'}}", consumer(t, http.StatusOK)), brokers, login))
	maps.Copy(all, useless(t, dir, closed))
	maps.Copy(all, registries(t, closed, brokers, login, wrong))
	// A collector that repeats what it gets, for all of them.
	tracing := []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + consumer(t, http.StatusUnauthorized), "OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer%20" + secret}
	for name, c := range all {
		c.env = append(c.env, tracing...)
		all[name] = c
	}
	return all
}

// clouds are those whose credentials are in the environment.
func clouds(closed string) map[string]leak {
	aws := []string{"AWS_ACCESS_KEY_ID=" + secret, "AWS_SECRET_ACCESS_KEY=" + secret, "AWS_SESSION_TOKEN=" + secret, "AWS_REGION=eu-central-1"}
	azure := []string{"AZURE_CLIENT_ID=" + secret, "AZURE_TENANT_ID=tenant", "AZURE_CLIENT_SECRET=" + secret, "AZURE_AUTHORITY_HOST=https://" + closed}
	return map[string]leak{
		"sqs closed":        {fmt.Sprintf("{sqs: {queueURL: 'https://sqs.eu-central-1.amazonaws.com/1/orders', endpoint: 'http://%s'}, timeout: 1s}", closed), unavailable, aws, ""},
		"sns closed":        {fmt.Sprintf("{sns: {topicARN: 'arn:aws:sns:eu-central-1:123456789012:orders', endpoint: 'http://%s'}, timeout: 1s}", closed), unavailable, aws, ""},
		"pubSub closed":     {fmt.Sprintf("{pubSub: {project: orders-1, endpoint: 'http://%s'}, timeout: 1s}", closed), unavailable, nil, ""},
		"serviceBus closed": {fmt.Sprintf("{serviceBus: {namespace: orders.servicebus.windows.net, endpoint: '%s'}, timeout: 1s}", closed), unavailable, azure, ""},
	}
}

// pipelines read the payload and the headers, and fail on what they read.
func pipelines(http, brokers, login string) map[string]leak {
	all := map[string]leak{}
	for name, yaml := range map[string]string{
		"a schema's pattern":       `message: {validation: [{schema: {inline: '{"properties": {"card": {"pattern": "^[0-9]+$"}}}'}}]}`,
		"a schema's constant":      `message: {validation: [{schema: {inline: '{"properties": {"card": {"enum": ["a", "b"]}}}'}}]}`,
		"a schema's names":         `message: {validation: [{schema: {inline: '{"properties": {"card": {"type": "object"}}, "additionalProperties": false}'}}]}`,
		"a rule":                   `message: {validation: [{rules: [{rule: 'payload.card == "other"', message: 'another card'}]}]}`,
		"a rule that cannot count": `message: {validation: [{rules: [{rule: 'int(payload.card) > 0', message: 'a number'}]}]}`,
		"a rule about time":        `message: {validation: [{rules: [{rule: 'timestamp(payload.card) < timestamp(payload.card)', message: 'a time'}]}]}`,
		"a rule about no field":    `message: {validation: [{rules: [{rule: 'payload[payload.card] == 1', message: 'a field'}]}]}`,
		"a transformation":         `message: {transform: [{payload: '{"n": int(payload.card)}'}]}`,
	} {
		want := dead
		if slices.Contains([]string{"a rule that cannot count", "a rule about time", "a transformation"}, name) {
			want = retried // they cannot be computed
		}
		all["pipeline with "+name] = leak{sink: http, want: want, more: yaml + "\n"}
	}
	all["pipeline with a route"] = leak{
		sink: fmt.Sprintf("{kafka: {brokers: ['%s']}, auth: {type: Plain, %s}, routes: [{to: 'string(int(event.headers.authorization))'}]}", brokers, login), want: retried,
	}
	return all
}

// servers are real ones that know the password, and refuse the wrong one.
func servers(t *testing.T, login, wrong string) map[string]leak {
	n, err := nats.Start(t.Context(), nats.Options{Settings: fmt.Sprintf("authorization: {user: %q, password: %q}", "user-"+secret, "password-"+secret)})
	check(t, err)
	t.Cleanup(func() { check(t, n.Stop(context.Background())) })
	all := map[string]leak{
		"nats without a stream": {fmt.Sprintf("{nats: {servers: ['%s']}, auth: {type: Basic, %s}}", n.URL(), login), retried, nil, ""},
		"nats wrong password":   {fmt.Sprintf("{nats: {servers: ['%s']}, auth: {type: Basic, %s}}", n.URL(), wrong), unavailable, nil, ""},
	}
	r, err := redis.Start(t.Context(), redis.Options{Settings: map[string]string{
		"user": fmt.Sprintf("user-%s on >password-%[1]s ~* +@all", secret),
	}})
	if isThere(t, err, redis.ErrMissing) {
		t.Cleanup(func() { check(t, r.Stop(context.Background())) })
		all["redis"] = leak{fmt.Sprintf("{redis: {addresses: ['%s']}, auth: {type: Basic, %s}}", r.Address, login), delivered, nil, ""}
		all["redis wrong password"] = leak{fmt.Sprintf("{redis: {addresses: ['%s']}, auth: {type: Basic, %s}}", r.Address, wrong), unavailable, nil, ""}
	}
	b, err := rabbitmq.Start(t.Context(), rabbitmq.Options{
		Users: map[string]string{"user-" + secret: "password-" + secret}, Permissions: map[string][3]string{"user-" + secret: {".*", ".*", ".*"}},
	})
	if isThere(t, err, rabbitmq.ErrMissing) {
		t.Cleanup(func() { check(t, b.Stop(context.Background())) })
		all["rabbitmq without a queue"] = leak{fmt.Sprintf("{rabbitmq: {addresses: ['%s']}, auth: {type: Plain, %s}}", b.Address(rabbitmq.Plain), login), retried, nil, ""}
		all["rabbitmq wrong password"] = leak{fmt.Sprintf("{rabbitmq: {addresses: ['%s']}, auth: {type: Plain, %s}}", b.Address(rabbitmq.Plain), wrong), unavailable, nil, ""}
	}
	return all
}

// isThere reports whether a server is there. One that is missing fails the test in CI, and its cases are
// left out elsewhere.
func isThere(t *testing.T, err, missing error) bool {
	t.Helper()
	if errors.Is(err, missing) && !need.CI() {
		t.Logf("without its cases: %v", err)
		return false
	}
	check(t, err)
	return true
}

// inboxes are tables of another database, with the password in a file's connection string.
func inboxes(t *testing.T, dir, closed string) map[string]leak {
	u, err := url.Parse(pgtest.Empty(t))
	check(t, err)
	pool, role := pgtest.Open(t, u.String()), "inbox_"+strings.TrimPrefix(u.Path, "/")
	for _, sql := range []string{
		fmt.Sprintf("create role %s login password 'password-%s'", role, secret),
		postgressink.Table, "grant select, insert on public.inbox_events to " + role,
	} {
		pgtest.Exec(pool, sql)
	}
	pgtest.DropRole(t, pool.Pool, role)
	all := map[string]leak{}
	for name, want := range map[string]string{"postgres": delivered, "postgres wrong password": unavailable, "postgres closed": unavailable} {
		to := *u
		to.User = url.UserPassword(role, "password-"+secret)
		switch name {
		case "postgres wrong password":
			to.User = url.UserPassword(role, "wrong-"+secret)
		case "postgres closed":
			to.Host = closed
		}
		key := strings.ReplaceAll(name, " ", "-")
		check(t, os.WriteFile(filepath.Join(dir, key), []byte(to.String()), 0o600))
		all[name] = leak{sink: fmt.Sprintf("{postgres: {secretRef: {name: planted, key: %s}}}", key), want: want}
	}
	return all
}

// No secret and no payload is in anything that a dispatcher says, at its most talkative, whatever it
// delivers to and whatever becomes of it: its log, its responses, its commands, what it writes into the
// rows. CONTRACT: C-73
// REQUIREMENT: OVERVIEW-16
func TestPlantedSecretsAreShownNowhere(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"user": "user-" + secret, "password": "password-" + secret, "wrong": "wrong-" + secret, "bearer": "bearer-" + secret,
		"signing": "whsec_" + strings.Repeat("s3cr3tAA", 4), // is base64
	} {
		check(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	all := leaks(t, dir)
	for _, kind := range spec.SinkKinds() {
		name, _, _ := strings.Cut(kind.Tag.Get("json"), ",")
		if name != "copy" && name != "log" && !slices.ContainsFunc(slices.Collect(maps.Values(all)), func(c leak) bool { return strings.HasPrefix(c.sink, "{"+name+":") }) {
			t.Errorf("no case has the sink %s", name)
		}
	}
	t.Run("kinds", func(t *testing.T) { // ends before the servers do
		for name, c := range all {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				plant(t, dir, c)
			})
		}
	})
}

func plant(t *testing.T, dir string, c leak) {
	o := installed(t)
	o.mount(t, "planted", dir)
	const n = 3
	event := fmt.Sprintf(`{"namespace": "shop", "topic": "orders", "event_type": "OrderPlaced", "payload": {"card": %q}, "headers": {"authorization": %[1]q}, "dedupe_key": `, secret)
	var lines strings.Builder
	for i := range n {
		fmt.Fprintf(&lines, "%s\"%s-%d\"}\n", event, secret, i)
	}
	run(t, lines.String(), "enqueue", "-f", o.file(t, o.producer, "")).ok(t)
	file := o.file(t, o.dispatcher, dispatching(c.sink)+"pods: {log: {level: Debug}}\ndelivery: {maxAttempts: 2, backoff: {base: 1ms, max: 1ms}}\n"+c.more)
	tested := command(t, "check", "-f", file)
	tested.Env = append(tested.Env, c.env...)
	finish(t, tested, "") // what it prints is looked at there

	p := start(t, file, c.env...)
	switch c.want {
	case delivered:
		await(t, "all are delivered", func() bool { return o.count(t, "status = 'delivered'") == n })
	case dead:
		await(t, "all are dead", func() bool { return o.count(t, "status = 'dead'") == n })
	case retried:
		await(t, "all wait with their attempts", func() bool {
			return o.count(t, "status = 'pending' and attempts = 0 and last_error is not null") == n
		})
	case unavailable:
		p.unready(t, "sink: ")
		await(t, "a delivery was tried", func() bool {
			return p.status(t).LastError != nil || strings.Contains(p.log.String(), "delivery failed") || o.count(t, "status = 'pending'") == n
		})
	}
	for _, path := range []string{"/metrics", "/status", "/readyz", "/healthz", "/"} {
		p.get(t, path) // looks for the secret
	}
	kept := pgtest.Value[string](o.admin, `select coalesce(string_agg(concat_ws(' ', last_error, dead_reason, (select string_agg(d::text, ' ') from outbox.outbox_dead_letters as d where d.event_id = e.id)), ' '), '')
		from outbox.outbox_events as e`)
	noSecret(t, kept)
	p.stop(t)
	for line := range strings.Lines(p.log.String()) {
		if !strings.HasPrefix(line, `{"time":`) {
			t.Errorf("a line that is not of the log: %s", line)
		}
	}
}

// consumer responds with the code, and with all that it got.
func consumer(t *testing.T, code int) string {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(code)
		_ = r.Header.Write(w) // the client may have disconnected
		_, _ = io.Copy(w, r.Body)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// kafka is a fake that knows the password.
func kafka(t *testing.T) string {
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "orders"), kfake.EnableSASL(),
		kfake.Superuser("PLAIN", "user-"+secret, "password-"+secret), kfake.Superuser("SCRAM-SHA-256", "user-"+secret, "password-"+secret))
	check(t, err)
	t.Cleanup(c.Close)
	return c.ListenAddrs()[0]
}

// closedPort is an address without a listener.
func closedPort(t *testing.T) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	defer listener.Close()
	return listener.Addr().String()
}

const older, newer = "older-" + secret, "newer-" + secret

// A login that is rotated is read by the process that runs: events wait while the old one is refused, none is dead
// and none is lost. The files are swapped as the kubelet does it. That each sink reads its files again is tested in its package.
//
// CONTRACT: C-102
func TestRotatedLoginLosesNoEvent(t *testing.T) {
	t.Parallel()
	u, err := url.Parse(pgtest.Empty(t))
	check(t, err)
	pool, role := pgtest.Open(t, u.String()), "inbox_"+filepath.Base(u.Path)
	for _, sql := range []string{fmt.Sprintf("create role %s login password '%s'", role, older), postgressink.Table, "grant select, insert on public.inbox_events to " + role} {
		pgtest.Exec(pool, sql)
	}
	pgtest.DropRole(t, pool.Pool, role)
	o := installed(t)
	m := mounted(t.TempDir())
	o.mount(t, "rotated", string(m))
	login := func(password string) {
		to := *u
		to.User = url.UserPassword(role, password)
		m.set(t, map[string]string{"dsn": to.String()})
	}
	login(older)
	p := start(t, o.file(t, o.dispatcher, dispatching("{postgres: {secretRef: {name: rotated}}}")+"delivery: {backoff: {base: 100ms, max: 1s}}\n"))
	o.enqueue(t, 5)
	await(t, "the first events are delivered", func() bool { return o.count(t, "status = 'delivered'") == 5 })

	pgtest.Exec(pool, fmt.Sprintf("alter role %s password '%s'", role, newer))
	pgtest.Exec(pool, "select pg_terminate_backend(pid) from pg_stat_activity where usename = '"+role+"'")
	o.enqueue(t, 5)
	await(t, "the old login is refused", func() bool { return p.status(t).Sink.State != status.Reachable })
	login(newer)
	await(t, "all is delivered", func() bool { return o.count(t, "status = 'delivered'") == 10 })
	p.ready(t)
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
