package spec

import (
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// made are the settings of objects, whose keys are at their paths, and lines of the keys: NAME/KEY by FIELD, sorted.
func made(t *testing.T, from Objects, login Login) (Config, []string) {
	t.Helper()
	c, refs := from.Config(login, Ref.Path)
	var lines []string
	for _, r := range refs {
		line := r.Path() + " by " + r.Field
		if r.ConfigMap != "" {
			line = "ConfigMap " + line
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return c, lines
}

// paths are the files of settings: FIELD PATH, sorted, fields in lower case.
func paths(c Config) (all []string) {
	var walk func(field string, v reflect.Value)
	walk = func(field string, v reflect.Value) {
		switch v.Kind() {
		case reflect.Pointer:
			if !v.IsNil() {
				walk(field, v.Elem())
			}
		case reflect.Slice:
			for i := range v.Len() {
				walk(fmt.Sprintf("%s[%d]", field, i), v.Index(i))
			}
		case reflect.Struct:
			for f, value := range v.Fields() {
				name := strings.ToLower(f.Name)
				if value.Kind() == reflect.String && strings.HasSuffix(f.Name, "File") && value.String() != "" {
					all = append(all, strings.TrimPrefix(field+"."+name, ".")+" "+value.String())
				} else if f.Name == "Dispatcher" || f.Anonymous {
					walk(field, value)
				} else {
					walk(field+"."+name, value)
				}
			}
		}
	}
	walk("", reflect.ValueOf(c))
	slices.Sort(all)
	return all
}

func read[T any](t *testing.T, text string) (v T) {
	t.Helper()
	need.OK(t, yaml.UnmarshalStrict([]byte(text), &v))
	return v
}

func same(t *testing.T, what string, got, want any) {
	t.Helper()
	need.That(t, reflect.DeepEqual(got, want), "%s:\n%+v\nwant\n%+v", what, got, want)
}

// What a part of a spec names, the settings have as files, each by the field that names it.
//
// CONTRACT: C-100
func TestKeysOfASpec(t *testing.T) {
	for name, test := range map[string]struct {
		spec        string
		files, keys []string
	}{
		"a user and a password": {
			"sink: {kafka: {brokers: [a:9092]}, auth: {type: Plain, secretRef: {name: user}}}",
			[]string{"sink.auth.secretfile user/password", "sink.auth.usernamefile user/username"},
			[]string{"user/username by spec.sink.auth.secretRef", "user/password by spec.sink.auth.secretRef"},
		},
		"Strimzi's user, password and authority": {
			"sink: {kafka: {brokers: [a:9093]}, auth: {type: ScramSHA512, username: orders, secretRef: {name: orders}}, tls: {caSecretRef: {name: cluster-ca}}}",
			[]string{"sink.auth.secretfile orders/password", "sink.tls.cafile cluster-ca/ca.crt"},
			[]string{"cluster-ca/ca.crt by spec.sink.tls.caSecretRef", "orders/password by spec.sink.auth.secretRef"},
		},
		"Strimzi's user with a certificate": {
			"sink: {kafka: {brokers: [a:9093]}, tls: {clientCertSecretRef: {name: orders, key: user.crt}, clientKeySecretRef: {name: orders, key: user.key}}}",
			[]string{"sink.tls.clientcertfile orders/user.crt", "sink.tls.clientkeyfile orders/user.key"},
			[]string{"orders/user.crt by spec.sink.tls.clientCertSecretRef", "orders/user.key by spec.sink.tls.clientKeySecretRef"},
		},
		"a certificate and its key in Secrets of their own": {
			"sink: {kafka: {brokers: [a:9093]}, tls: {clientCertSecretRef: {name: cert}, clientKeySecretRef: {name: other}}}",
			[]string{"sink.tls.clientcertfile cert/tls.crt", "sink.tls.clientkeyfile other/tls.key"},
			[]string{"cert/tls.crt by spec.sink.tls.clientCertSecretRef", "other/tls.key by spec.sink.tls.clientKeySecretRef"},
		},
		"a certificate with another key, and its private key by default": {
			"sink: {kafka: {brokers: [a:9093]}, tls: {clientCertSecretRef: {name: cert, key: chain.pem}}}",
			[]string{"sink.tls.clientcertfile cert/chain.pem", "sink.tls.clientkeyfile cert/tls.key"},
			[]string{"cert/chain.pem by spec.sink.tls.clientCertSecretRef", "cert/tls.key by spec.sink.tls.clientCertSecretRef"},
		},
		"a certificate of cert-manager": {
			"sink: {rabbitmq: {addresses: [a:5671]}, auth: {type: External}, tls: {clientCertSecretRef: {name: orders}}}",
			[]string{"sink.tls.clientcertfile orders/tls.crt", "sink.tls.clientkeyfile orders/tls.key"},
			[]string{"orders/tls.crt by spec.sink.tls.clientCertSecretRef", "orders/tls.key by spec.sink.tls.clientCertSecretRef"},
		},
		"a token, and TLS with the system's roots": {
			"sink: {kafka: {brokers: [b:9092, a:9092]}, auth: {type: OAuthBearer, secretRef: {name: t, key: jwt}}, tls: {}}",
			[]string{"sink.auth.secretfile t/jwt"},
			[]string{"t/jwt by spec.sink.auth.secretRef"},
		},
		"other keys, and an authority in a ConfigMap": {
			"sink: {rabbitmq: {addresses: [a:5671]}, auth: {type: Plain, usernameKey: user, secretRef: {name: r, key: pass}}, tls: {caConfigMapRef: {name: roots, key: bundle.pem}, serverName: r}}",
			[]string{"sink.auth.secretfile r/pass", "sink.auth.usernamefile r/user", "sink.tls.cafile roots/bundle.pem"},
			[]string{"r/user by spec.sink.auth.secretRef", "r/pass by spec.sink.auth.secretRef", "ConfigMap roots/bundle.pem by spec.sink.tls.caConfigMapRef"},
		},
		"an authority in a ConfigMap": {
			"sink: {redis: {addresses: [a:6379]}, tls: {caConfigMapRef: {name: roots}}}",
			[]string{"sink.tls.cafile roots/ca.crt"},
			[]string{"ConfigMap roots/ca.crt by spec.sink.tls.caConfigMapRef"},
		},
		"the identity of the pod": {
			"sink: {kafka: {brokers: [a:9098]}, auth: {type: AWSMSKIAM}, tls: {}}",
			nil,
			nil,
		},
		"NATS credentials": {
			"sink: {nats: {servers: ['nats://a:4222']}, auth: {type: Credentials, secretRef: {name: creds, key: user.creds}}}",
			[]string{"sink.auth.secretfile creds/user.creds"},
			[]string{"creds/user.creds by spec.sink.auth.secretRef"},
		},
		"NATS credentials by default": {
			"sink: {nats: {servers: ['nats://a:4222']}, auth: {type: Credentials, secretRef: {name: creds}}}",
			[]string{"sink.auth.secretfile creds/credentials"},
			[]string{"creds/credentials by spec.sink.auth.secretRef"},
		},
		"an NKey": {
			"sink: {nats: {servers: ['nats://a:4222']}, auth: {type: NKey, secretRef: {name: creds}}}",
			[]string{"sink.auth.secretfile creds/nkey"},
			[]string{"creds/nkey by spec.sink.auth.secretRef"},
		},
		"a NATS token": {
			"sink: {nats: {servers: ['nats://a:4222']}, auth: {type: Token, secretRef: {name: creds}}}",
			[]string{"sink.auth.secretfile creds/token"},
			[]string{"creds/token by spec.sink.auth.secretRef"},
		},
		"a password": {
			"sink: {redis: {addresses: [a:6379]}, auth: {type: Password, secretRef: {name: r, key: redis-password}}}",
			[]string{"sink.auth.secretfile r/redis-password"},
			[]string{"r/redis-password by spec.sink.auth.secretRef"},
		},
		"a bearer token, and signing": {
			"sink: {http: {url: 'https://a', signingSecretRef: {name: s, key: k}}, auth: {type: Token, secretRef: {name: h, key: t}}}",
			[]string{"sink.auth.secretfile h/t", "sink.http.signingsecretfile s/k"},
			[]string{"h/t by spec.sink.auth.secretRef", "s/k by spec.sink.http.signingSecretRef"},
		},
		"signing by default": {
			"sink: {http: {url: 'https://a', signingSecretRef: {name: s}}}",
			[]string{"sink.http.signingsecretfile s/secret"},
			[]string{"s/secret by spec.sink.http.signingSecretRef"},
		},
		"the registry's, in addition to the sink's": {
			"{sink: {http: {url: 'https://a'}, auth: {type: Token, secretRef: {name: h}}}, message: {schemaRegistry: {url: 'https://r', auth: {type: Token, secretRef: {name: r}}, tls: {caSecretRef: {name: ca}}}}}",
			[]string{"message.schemaregistry.auth.secretfile r/token", "message.schemaregistry.tls.cafile ca/ca.crt", "sink.auth.secretfile h/token"},
			[]string{"h/token by spec.sink.auth.secretRef", "r/token by spec.message.schemaRegistry.auth.secretRef", "ca/ca.crt by spec.message.schemaRegistry.tls.caSecretRef"},
		},
		"an inbox": {
			"sink: {postgres: {secretRef: {name: db}}, tls: {caSecretRef: {name: ca}}, timeout: 5s}",
			[]string{"sink.postgres.dsnfile db/dsn", "sink.tls.cafile ca/ca.crt"},
			[]string{"db/dsn by spec.sink.postgres.secretRef", "ca/ca.crt by spec.sink.tls.caSecretRef"},
		},
		"an inbox with an IAM login": {
			"sink: {postgres: {secretRef: {name: db, key: uri}, iam: {provider: Google}}}",
			[]string{"sink.postgres.dsnfile db/uri"},
			[]string{"db/uri by spec.sink.postgres.secretRef"},
		},
		"schemas and headers": {
			"{sink: {http: {url: 'https://a', headers: [{name: X, value: v}]}}, message: {headers: [{name: T, expression: event.type}], validation: [{types: [B, A], schema: {configMapRef: {name: schemas, key: order.json}}}, {schema: {configMapRef: {name: schemas}}}]}}",
			[]string{"message.validation[0].schema.file schemas/order.json", "message.validation[1].schema.file schemas/schema.json"},
			[]string{"ConfigMap schemas/order.json by spec.message.validation[0].schema.configMapRef", "ConfigMap schemas/schema.json by spec.message.validation[1].schema.configMapRef"},
		},
		"a database of its own": {
			"database: {secretRef: {name: app, key: uri}, schema: shop, caSecretRef: {name: ca, key: root.pem}, migrationSecretRef: {name: owner}}",
			[]string{"database.cafile ca/root.pem", "database.dsnfile app/uri"},
			[]string{"app/uri by spec.database.secretRef", "ca/root.pem by spec.database.caSecretRef"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, keys := made(t, Objects{Dispatcher: read[*Dispatcher](t, test.spec)}, LoginDispatcher)
			same(t, "the files", paths(c), test.files)
			same(t, "the keys", keys, slices.Sorted(slices.Values(test.keys)))
		})
	}
	own := Objects{Dispatcher: read[*Dispatcher](t, "database: {secretRef: {name: app}, migrationSecretRef: {name: owner}}")}
	c, keys := made(t, own, LoginMigration)
	same(t, "its migration", c.Database.DSNFile, "owner/dsn")
	same(t, "the keys of its migration", keys, []string{"app/dsn by spec.database.secretRef", "owner/dsn by spec.database.migrationSecretRef"})
}

// The Secrets that others make are used as they are, for the dispatchers and for the migration.
//
// CONTRACT: C-100
func TestDatabaseSecretsAreUsedAsTheyAre(t *testing.T) {
	for name, test := range map[string]struct {
		spec, file, migration string
		mounts, migrates      []string
	}{
		"CloudNativePG": {
			spec: "{secretRef: {name: app}, secretKeys: {}, tls: {caSecretRef: {name: db-ca}}, migration: {secretRef: {name: owner, key: uri}}}",
			file: "{connection: {hostFile: app/host, portFile: app/port, databaseFile: app/dbname, " +
				"userFile: app/username, passwordFile: app/password}, sslMode: VerifyFull, caFile: db-ca/ca.crt}",
			migration: "{dsnFile: owner/uri, sslMode: VerifyFull, caFile: db-ca/ca.crt}",
			mounts: []string{"app/host by spec.secretRef", "app/port by spec.secretRef", "app/dbname by spec.secretRef",
				"app/username by spec.secretRef", "app/password by spec.secretRef", "db-ca/ca.crt by spec.tls.caSecretRef"},
			migrates: []string{"owner/uri by spec.migration.secretRef"},
		},
		"Zalando": {
			spec:      "{server: {host: acid-orders, port: 5432, database: shop}, secretRef: {name: app}, migration: {secretRef: {name: owner}}}",
			file:      "{connection: {host: acid-orders, port: 5432, database: shop, userFile: app/username, passwordFile: app/password}}",
			migration: "{connection: {host: acid-orders, port: 5432, database: shop, userFile: owner/username, passwordFile: owner/password}}",
			mounts:    []string{"app/username by spec.secretRef", "app/password by spec.secretRef"},
			migrates:  []string{"owner/username by spec.migration.secretRef", "owner/password by spec.migration.secretRef"},
		},
		"a server, and an owner by a connection string": {
			spec:      "{server: {host: acid-orders, port: 5432, database: shop}, secretRef: {name: app}, migration: {secretRef: {name: owner, key: uri}}}",
			file:      "{connection: {host: acid-orders, port: 5432, database: shop, userFile: app/username, passwordFile: app/password}}",
			migration: "{dsnFile: owner/uri}",
			mounts:    []string{"app/username by spec.secretRef", "app/password by spec.secretRef"},
			migrates:  []string{"owner/uri by spec.migration.secretRef"},
		},
		"a user as it is": {
			spec:      "{server: {host: a, port: 1, database: b}, user: app, secretRef: {name: s}, secretKeys: {password: pw}, migration: {}}",
			file:      "{connection: {host: a, port: 1, database: b, user: app, passwordFile: s/pw}}",
			migration: "{connection: {host: a, port: 1, database: b, user: app, passwordFile: s/pw}}",
			mounts:    []string{"s/pw by spec.secretRef"},
		},
		"IAM": {
			spec:      "{server: {host: a, port: 5432, database: b}, user: app, iam: {provider: AWS, region: eu-west-1}, tls: {mode: Require}, migration: {user: owner}}",
			file:      "{connection: {host: a, port: 5432, database: b, user: app}, sslMode: Require, iam: {provider: AWS, region: eu-west-1}}",
			migration: "{connection: {host: a, port: 5432, database: b, user: owner}, sslMode: Require, iam: {provider: AWS, region: eu-west-1}}",
		},
		"IAM, and the rest in a Secret": {
			spec: "{secretRef: {name: s}, secretKeys: {}, iam: {provider: Azure}, tls: {mode: Require}}",
			file: "{connection: {hostFile: s/host, portFile: s/port, databaseFile: s/dbname, userFile: s/username}, sslMode: Require, iam: {provider: Azure}}",
			mounts: []string{"s/host by spec.secretRef", "s/port by spec.secretRef",
				"s/dbname by spec.secretRef", "s/username by spec.secretRef"},
		},
		"certificates": {
			spec: "{server: {host: a, port: 5432, database: b}, user: app, tls: {mode: VerifyFull, caConfigMapRef: {name: roots}, clientCertSecretRef: {name: app}}, " +
				"migration: {user: owner, clientCertSecretRef: {name: owner, key: c}, clientKeySecretRef: {name: owner-key, key: k}}}",
			file: "{connection: {host: a, port: 5432, database: b, user: app}, sslMode: VerifyFull, caFile: roots/ca.crt, " +
				"clientCertFile: app/tls.crt, clientKeyFile: app/tls.key}",
			migration: "{connection: {host: a, port: 5432, database: b, user: owner}, sslMode: VerifyFull, caFile: roots/ca.crt, " +
				"clientCertFile: owner/c, clientKeyFile: owner-key/k}",
			mounts: []string{"ConfigMap roots/ca.crt by spec.tls.caConfigMapRef",
				"app/tls.crt by spec.tls.clientCertSecretRef", "app/tls.key by spec.tls.clientCertSecretRef"},
			migrates: []string{"owner/c by spec.migration.clientCertSecretRef", "owner-key/k by spec.migration.clientKeySecretRef"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			from := Objects{Outbox: read[*Outbox](t, test.spec), OutboxField: "spec"}
			c, keys := made(t, from, LoginDispatcher)
			same(t, "the dispatchers' settings", c.Database, read[Database](t, test.file))
			same(t, "the dispatchers' keys", keys, slices.Sorted(slices.Values(test.mounts)))
			if test.migration != "" {
				c, keys = made(t, from, LoginMigration)
				same(t, "the migration's settings", c.Database, read[Database](t, test.migration))
				same(t, "the migration's keys", keys, slices.Sorted(slices.Values(append(test.mounts, test.migrates...))))
			}
		})
	}
}

// A login of replays has a certificate of its own in the place of the dispatchers', and reads nothing of theirs.
//
// CONTRACT: C-42
func TestLoginOfReplays(t *testing.T) {
	for spec, want := range map[string][]string{
		"{server: {host: db, port: 5432, database: orders}, user: app, tls: {mode: Require, clientCertSecretRef: {name: app-cert}}, replayLogin: {user: replay, clientCertSecretRef: {name: replay-cert}}}": {
			"replay-cert/tls.crt by spec.replayLogin.clientCertSecretRef", "replay-cert/tls.key by spec.replayLogin.clientCertSecretRef"},
		"{secretRef: {name: app}, replayLogin: {secretRef: {name: replay}}}": {"replay/dsn by spec.replayLogin.secretRef"},
	} {
		c, keys := made(t, Objects{Outbox: read[*Outbox](t, spec), OutboxField: "spec"}, LoginReplay)
		same(t, "the keys of "+spec, keys, want)
		u := c.Database.Connection
		need.That(t, u == nil || (u.User == "replay" && c.Database.ClientCertFile == "replay-cert/tls.crt"), "%s: %+v, %+v", spec, c.Database, u)
	}
}

// Each dispatcher of an Outbox notifies as that says, and its sweep is about all rows.
//
// CONTRACT: C-60, C-100
func TestNotificationsAndRetentionOfTheOutbox(t *testing.T) {
	outbox := read[*Outbox](t, "{secretRef: {name: db}, retention: {delivered: 1h}, notify: {url: 'https://n', auth: {type: Token, secretRef: {name: oncall}}, signingSecretRef: {name: s}, tls: {caSecretRef: {name: ca}}}}")
	c, keys := made(t, Objects{Dispatcher: &Dispatcher{OutboxRef: &OutboxRef{Name: "main"}}, Outbox: outbox, OutboxField: "Outbox main: spec"}, LoginDispatcher)
	same(t, "the files", paths(c), []string{"database.dsnfile db/dsn", "notify.auth.secretfile oncall/token", "notify.signingsecretfile s/secret", "notify.tls.cafile ca/ca.crt"})
	same(t, "the keys", keys, []string{"ca/ca.crt by Outbox main: spec.notify.tls.caSecretRef", "db/dsn by Outbox main: spec.secretRef",
		"oncall/token by Outbox main: spec.notify.auth.secretRef", "s/secret by Outbox main: spec.notify.signingSecretRef"})
	need.That(t, c.Retention.Scope == ScopeOutbox, "the retention is %+v", c.Retention)
}

// What a sink has next to its kind reaches the kind, with the default of the kind.
func TestSinksAreHandedTheirAccess(t *testing.T) {
	timeouts := map[string]time.Duration{
		"copy": 10, "http": 10, "kafka": 30, "log": 0, "nats": 10, "postgres": 30, "pubSub": 10, "rabbitmq": 30, "redis": 10, "serviceBus": 10, "sns": 10, "sqs": 10,
	}
	for _, kind := range SinkKinds() {
		s := Sink{Auth: &Auth{Username: "a"}, TLS: &TLS{CAFile: "b"}}
		reflect.ValueOf(&s).Elem().FieldByIndex(kind.Index).Set(reflect.New(kind.Type.Elem()))
		s.ApplyDefaults()
		a, timeout := s.members()[s.Kind()].access(), Duration(timeouts[s.Kind()]*time.Second)
		need.That(t, a.Auth == s.Auth && a.TLS == s.TLS && a.Timeout == timeout && s.Timeout == timeout,
			"%s: got %+v, want auth, tls and a timeout of %s; the sink has %s", s.Kind(), a, timeout, s.Timeout)
		s.Timeout = Duration(time.Minute)
		s.ApplyDefaults()
		need.Want(t, Duration(time.Minute), "%s: the timeout is %s, want 1m", a.Timeout, s.Kind())
		delete(timeouts, s.Kind())
	}
	need.That(t, len(timeouts) == 0, "there are no sinks %v", timeouts)
}

// All that a sink says of its database is in what is connected to.
func TestPostgresDatabase(t *testing.T) {
	iam := &IAM{Provider: IAMAWS}
	s := PostgresSink{DSN: "a", DSNFile: "b", IAM: iam, Access: Access{TLS: &TLS{CAFile: "c", ClientCertFile: "d", ClientKeyFile: "e"}}}
	want := Database{DSN: "a", DSNFile: "b", Schema: "outbox", CAFile: "c", ClientCertFile: "d", ClientKeyFile: "e", IAM: iam}
	need.Want(t, want, "got  %+v\nwant %+v", s.Database())
}

// The resource refuses the headers that the file refuses, and names them.
func TestReservedHeadersAreThoseOfTheResource(t *testing.T) {
	crd, err := os.ReadFile("../../charts/outbox-operator/files/crds/outbox.dev_outboxdispatchers.yaml")
	need.OK(t, err)
	text := strings.Join(strings.Fields(string(crd)), " ")
	rule := regexp.MustCompile(`self\.lowerAscii\(\) in \[('authorization'[^]]*)\]`).FindStringSubmatch(text)
	named := regexp.MustCompile(`none that the dispatcher sets itself \(ce-\*, ([^)]*)\)`).FindStringSubmatch(text)
	if rule == nil || named == nil {
		t.Fatal("the resource has no rule for the names of headers")
	}
	for what, list := range map[string]string{"the rule": strings.ReplaceAll(rule[1], "'", ""), "the message": named[1]} {
		need.WantAll(t, ReservedHeaders, "%s has %q, and ReservedHeaders %q", strings.Split(list, ", "), what)
	}
}
