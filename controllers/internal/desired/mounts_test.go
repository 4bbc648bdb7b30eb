package desired

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

// What a part of a spec names, the file names where it is mounted. SECRETS is where that is.
//
// CONTRACT: C-100
func TestMountedFilesAreNamedInTheFile(t *testing.T) {
	for name, test := range map[string]struct {
		spec, file string
		mounts     []string
	}{
		"a user and a password": {
			"sink: {kafka: {brokers: [a:9092], auth: {mechanism: PLAIN, basic: {name: user}}}}",
			"sink: {kafka: {brokers: [a:9092], auth: {mechanism: PLAIN, basic: {usernameFile: SECRETS/sink/username, passwordFile: SECRETS/sink/password}}}}",
			[]string{"sink/username: user/username by spec.sink.kafka.auth.basic", "sink/password: user/password by spec.sink.kafka.auth.basic"},
		},
		"Strimzi's user, password and authority": {
			"sink: {kafka: {brokers: [a:9093], auth: {mechanism: SCRAM-SHA-512, basic: {name: orders, username: orders}}, tls: {ca: {secret: {name: cluster-ca}}}}}",
			"sink: {kafka: {brokers: [a:9093], auth: {mechanism: SCRAM-SHA-512, basic: {username: orders, passwordFile: SECRETS/sink/password}}, tls: {caFile: SECRETS/sink/ca.crt}}}",
			[]string{"sink/ca.crt: cluster-ca/ca.crt by spec.sink.kafka.tls.ca.secret", "sink/password: orders/password by spec.sink.kafka.auth.basic"},
		},
		"Strimzi's user with a certificate": {
			"sink: {kafka: {brokers: [a:9093], tls: {clientCertificate: {name: orders, certKey: user.crt, keyKey: user.key}}}}",
			"sink: {kafka: {brokers: [a:9093], tls: {clientCertFile: SECRETS/sink/tls.crt, clientKeyFile: SECRETS/sink/tls.key}}}",
			[]string{"sink/tls.crt: orders/user.crt by spec.sink.kafka.tls.clientCertificate", "sink/tls.key: orders/user.key by spec.sink.kafka.tls.clientCertificate"},
		},
		"a token, and TLS with the system's roots": {
			"sink: {kafka: {brokers: [b:9092, a:9092], auth: {mechanism: OAUTHBEARER, token: {name: t, key: jwt}}, tls: {}}}",
			"sink: {kafka: {brokers: [a:9092, b:9092], auth: {mechanism: OAUTHBEARER, tokenFile: SECRETS/sink/token}, tls: {}}}",
			[]string{"sink/token: t/jwt by spec.sink.kafka.auth.token"},
		},
		"other keys, and an authority in a ConfigMap": {
			"sink: {rabbitmq: {addresses: [a:5671], auth: {mechanism: PLAIN, basic: {name: r, usernameKey: user, passwordKey: pass}}, tls: {ca: {configMap: {name: roots, key: bundle.pem}}, serverName: r}}}",
			"sink: {rabbitmq: {addresses: [a:5671], auth: {mechanism: PLAIN, basic: {usernameFile: SECRETS/sink/username, passwordFile: SECRETS/sink/password}}, tls: {caFile: SECRETS/sink/ca.crt, serverName: r}}}",
			[]string{"sink/username: r/user by spec.sink.rabbitmq.auth.basic", "sink/password: r/pass by spec.sink.rabbitmq.auth.basic", "sink/ca.crt: ConfigMap roots/bundle.pem by spec.sink.rabbitmq.tls.ca.configMap"},
		},
		"NATS credentials": {
			"sink: {nats: {servers: ['nats://a:4222'], auth: {credentials: {name: creds, key: user.creds}}}}",
			"sink: {nats: {servers: ['nats://a:4222'], auth: {credentialsFile: SECRETS/sink/nats.creds}}}",
			[]string{"sink/nats.creds: creds/user.creds by spec.sink.nats.auth.credentials"},
		},
		"an NKey": {
			"sink: {nats: {servers: ['nats://a:4222'], auth: {nkey: {name: creds, key: seed}}}}",
			"sink: {nats: {servers: ['nats://a:4222'], auth: {nkeyFile: SECRETS/sink/nkey}}}",
			[]string{"sink/nkey: creds/seed by spec.sink.nats.auth.nkey"},
		},
		"a NATS token": {
			"sink: {nats: {servers: ['nats://a:4222'], auth: {token: {name: creds, key: t}}}}",
			"sink: {nats: {servers: ['nats://a:4222'], auth: {tokenFile: SECRETS/sink/token}}}",
			[]string{"sink/token: creds/t by spec.sink.nats.auth.token"},
		},
		"a password": {
			"sink: {redis: {addresses: [a:6379], auth: {password: {name: r, key: redis-password}}}}",
			"sink: {redis: {addresses: [a:6379], auth: {passwordFile: SECRETS/sink/password}}}",
			[]string{"sink/password: r/redis-password by spec.sink.redis.auth.password"},
		},
		"a bearer token, and signing": {
			"sink: {http: {url: 'https://a', auth: {token: {name: h, key: t}}, signing: {secret: {name: s, key: k}}}}",
			"sink: {http: {url: 'https://a', auth: {tokenFile: SECRETS/sink/token}, signing: {secretFile: SECRETS/sink/signing-secrets}}}",
			[]string{"sink/token: h/t by spec.sink.http.auth.token", "sink/signing-secrets: s/k by spec.sink.http.signing.secret"},
		},
		"the registry's, in addition to the sink's": {
			"{sink: {http: {url: 'https://a', auth: {token: {name: h, key: t}}}}, schemaRegistry: {url: 'https://r', auth: {token: {name: r, key: t}}, tls: {ca: {secret: {name: ca}}}}}",
			"{sink: {http: {url: 'https://a', auth: {tokenFile: SECRETS/sink/token}}}, schemaRegistry: {url: 'https://r', auth: {tokenFile: SECRETS/registry/token}, tls: {caFile: SECRETS/registry/ca.crt}}}",
			[]string{"sink/token: h/t by spec.sink.http.auth.token", "registry/token: r/t by spec.schemaRegistry.auth.token", "registry/ca.crt: ca/ca.crt by spec.schemaRegistry.tls.ca.secret"},
		},
		"the address of notifications, in addition to the sink's": {
			"{sink: {http: {url: 'https://a', auth: {token: {name: h, key: t}}}}, deadLetters: {notify: {url: 'https://n', auth: {token: {name: oncall, key: t}}, signing: {secret: {name: s, key: k}}, tls: {ca: {secret: {name: ca}}}}}}",
			"{sink: {http: {url: 'https://a', auth: {tokenFile: SECRETS/sink/token}}}, deadLetters: {notify: {url: 'https://n', auth: {tokenFile: SECRETS/notify/token}, signing: {secretFile: SECRETS/notify/signing-secrets}, tls: {caFile: SECRETS/notify/ca.crt}}}}",
			[]string{"sink/token: h/t by spec.sink.http.auth.token", "notify/token: oncall/t by spec.deadLetters.notify.auth.token", "notify/signing-secrets: s/k by spec.deadLetters.notify.signing.secret", "notify/ca.crt: ca/ca.crt by spec.deadLetters.notify.tls.ca.secret"},
		},
		"an inbox with a connection string": {
			"sink: {postgres: {database: {secret: {name: db}}}}",
			"sink: {postgres: {database: {dsnFile: SECRETS/sink/dsn}}}",
			[]string{"sink/dsn: db/dsn by spec.sink.postgres.database.secret"},
		},
		"an inbox with an IAM login": {
			"sink: {postgres: {database: {server: {host: a, port: 5432, database: b}, user: c, iam: {provider: Google}}}}",
			"sink: {postgres: {database: {connection: {host: a, port: 5432, database: b, user: c}, iam: {provider: Google}}}}",
			nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			obd := minimal()
			obd.Spec.Sink = v1alpha1.Sink{}
			read(t, test.spec, &obd.Spec)
			c, refs := withRefs(obd)
			var want config.Config
			read(t, test.file, &want)
			if !reflect.DeepEqual(c.Sink, want.Sink) || !reflect.DeepEqual(c.SchemaRegistry, want.SchemaRegistry) || !reflect.DeepEqual(c.DeadLetters, want.DeadLetters) {
				t.Errorf("the file is\n%s\nwant\n%s", render(c), render(want))
			}
			mounted(t, refs, append([]string{"database/dsn: orders-db/dsn by spec.database.secret"}, test.mounts...))
		})
	}
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
			spec: "{secret: {name: app, keys: {}}, tls: {ca: {secret: {name: db-ca}}}, migration: {secret: {name: owner, dsnKey: uri}}}",
			file: "{connection: {hostFile: SECRETS/database/host, portFile: SECRETS/database/port, databaseFile: SECRETS/database/dbname, " +
				"userFile: SECRETS/database/username, passwordFile: SECRETS/database/password}, caFile: SECRETS/database/ca.crt}",
			migration: "{dsnFile: SECRETS/migration/dsn, caFile: SECRETS/database/ca.crt}",
			mounts: []string{"database/host: app/host by spec.database.secret", "database/port: app/port by spec.database.secret", "database/dbname: app/dbname by spec.database.secret",
				"database/username: app/username by spec.database.secret", "database/password: app/password by spec.database.secret", "database/ca.crt: db-ca/ca.crt by spec.database.tls.ca.secret"},
			migrates: []string{"migration/dsn: owner/uri by spec.database.migration.secret"},
		},
		"Zalando": {
			spec:      "{server: {host: acid-orders, port: 5432, database: shop}, secret: {name: app}, migration: {secret: {name: owner}}}",
			file:      "{connection: {host: acid-orders, port: 5432, database: shop, userFile: SECRETS/database/username, passwordFile: SECRETS/database/password}}",
			migration: "{connection: {host: acid-orders, port: 5432, database: shop, userFile: SECRETS/migration/username, passwordFile: SECRETS/migration/password}}",
			mounts:    []string{"database/username: app/username by spec.database.secret", "database/password: app/password by spec.database.secret"},
			migrates:  []string{"migration/username: owner/username by spec.database.migration.secret", "migration/password: owner/password by spec.database.migration.secret"},
		},
		"a user as it is": {
			spec:      "{server: {host: a, port: 1, database: b}, user: app, secret: {name: s, keys: {password: pw}}, migration: {}}",
			file:      "{connection: {host: a, port: 1, database: b, user: app, passwordFile: SECRETS/database/password}}",
			migration: "{connection: {host: a, port: 1, database: b, user: app, passwordFile: SECRETS/database/password}}",
			mounts:    []string{"database/password: s/pw by spec.database.secret"},
		},
		"IAM": {
			spec:      "{server: {host: a, port: 5432, database: b}, user: app, iam: {provider: AWS, region: eu-west-1}, migration: {user: owner}}",
			file:      "{connection: {host: a, port: 5432, database: b, user: app}, iam: {provider: AWS, region: eu-west-1}}",
			migration: "{connection: {host: a, port: 5432, database: b, user: owner}, iam: {provider: AWS, region: eu-west-1}}",
		},
		"IAM, and the rest in a Secret": {
			spec: "{secret: {name: s, keys: {}}, iam: {provider: Azure}}",
			file: "{connection: {hostFile: SECRETS/database/host, portFile: SECRETS/database/port, databaseFile: SECRETS/database/dbname, userFile: SECRETS/database/username}, iam: {provider: Azure}}",
			mounts: []string{"database/host: s/host by spec.database.secret", "database/port: s/port by spec.database.secret",
				"database/dbname: s/dbname by spec.database.secret", "database/username: s/username by spec.database.secret"},
		},
		"certificates": {
			spec: "{server: {host: a, port: 5432, database: b}, user: app, tls: {mode: verify-full, ca: {configMap: {name: roots}}, clientCertificate: {name: app}}, " +
				"migration: {user: owner, clientCertificate: {name: owner, certKey: c, keyKey: k}}}",
			file: "{connection: {host: a, port: 5432, database: b, user: app}, sslMode: verify-full, caFile: SECRETS/database/ca.crt, " +
				"clientCertFile: SECRETS/database/tls.crt, clientKeyFile: SECRETS/database/tls.key}",
			migration: "{connection: {host: a, port: 5432, database: b, user: owner}, sslMode: verify-full, caFile: SECRETS/database/ca.crt, " +
				"clientCertFile: SECRETS/migration/tls.crt, clientKeyFile: SECRETS/migration/tls.key}",
			mounts: []string{"database/ca.crt: ConfigMap roots/ca.crt by spec.database.tls.ca.configMap",
				"database/tls.crt: app/tls.crt by spec.database.tls.clientCertificate", "database/tls.key: app/tls.key by spec.database.tls.clientCertificate"},
			migrates: []string{"migration/tls.crt: owner/c by spec.database.migration.clientCertificate", "migration/tls.key: owner/k by spec.database.migration.clientCertificate"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			obd := minimal()
			obd.Spec.Database = &v1alpha1.OutboxSpec{}
			read(t, test.spec, obd.Spec.Database)
			var migrates config.Config
			if Migrates(obd.Spec.Database) {
				migrates, _ = migrationConfigs(obd, obd.Spec.Database)
			}
			for what, file := range map[string]struct {
				got  config.Config
				want string
			}{"dispatchers": {Config(obd), test.file}, "migration": {migrates, test.migration}} {
				if file.want == "" {
					continue
				}
				var want config.Config
				read(t, file.want, &want.Database)
				want.ApplyDefaults()
				file.got.ApplyDefaults()
				if !reflect.DeepEqual(file.got.Database, want.Database) {
					t.Errorf("the file of the %s has\n%s\nwant\n%s", what, render(file.got), render(want))
				}
				if err := file.got.ValidateDatabase(); err != nil {
					t.Errorf("the %s refuse it: %v", what, err)
				}
			}
			mounted(t, DispatcherRefs(obd), test.mounts)
			if test.migration != "" {
				mounted(t, MigrationRefs(obd), append(test.mounts, test.migrates...))
			}
		})
	}
}

// read is strict. SECRETS stands for the directory of the mounted keys.
func read(t *testing.T, text string, into any) {
	t.Helper()
	if err := yaml.UnmarshalStrict([]byte(strings.ReplaceAll(text, "SECRETS", secretsDir)), into); err != nil {
		t.Fatal(err)
	}
}

// mounted compares the refs with lines, in whatever order.
func mounted(t *testing.T, refs []Ref, want []string) {
	t.Helper()
	var got []string
	for _, r := range refs {
		name := r.Secret
		if r.ConfigMap != "" {
			name = "ConfigMap " + r.ConfigMap
		}
		got = append(got, fmt.Sprintf("%s: %s/%s by %s", r.Path, name, r.Key, r.Field))
	}
	want = slices.Sorted(slices.Values(want))
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("mounted are\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}
