package desired

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/outbox-operator/outbox-operator/api/spec"
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
			"sink: {kafka: {brokers: [a:9092]}, auth: {type: Plain, secretRef: {name: user}}}",
			"sink: {kafka: {brokers: [a:9092]}, auth: {type: Plain, usernameFile: SECRETS/sink/username, secretFile: SECRETS/sink/password}}",
			[]string{"sink/username: user/username by spec.sink.auth.secretRef", "sink/password: user/password by spec.sink.auth.secretRef"},
		},
		"Strimzi's user, password and authority": {
			"sink: {kafka: {brokers: [a:9093]}, auth: {type: ScramSHA512, username: orders, secretRef: {name: orders}}, tls: {caSecretRef: {name: cluster-ca}}}",
			"sink: {kafka: {brokers: [a:9093]}, auth: {type: ScramSHA512, username: orders, secretFile: SECRETS/sink/password}, tls: {caFile: SECRETS/sink/ca.crt}}",
			[]string{"sink/ca.crt: cluster-ca/ca.crt by spec.sink.tls.caSecretRef", "sink/password: orders/password by spec.sink.auth.secretRef"},
		},
		"Strimzi's user with a certificate": {
			"sink: {kafka: {brokers: [a:9093]}, tls: {clientCertSecretRef: {name: orders, key: user.crt}, clientKeySecretRef: {name: orders, key: user.key}}}",
			"sink: {kafka: {brokers: [a:9093]}, tls: {clientCertFile: SECRETS/sink/tls.crt, clientKeyFile: SECRETS/sink/tls.key}}",
			[]string{"sink/tls.crt: orders/user.crt by spec.sink.tls.clientCertSecretRef", "sink/tls.key: orders/user.key by spec.sink.tls.clientKeySecretRef"},
		},
		"a certificate and its key in Secrets of their own": {
			"sink: {kafka: {brokers: [a:9093]}, tls: {clientCertSecretRef: {name: cert}, clientKeySecretRef: {name: other}}}",
			"sink: {kafka: {brokers: [a:9093]}, tls: {clientCertFile: SECRETS/sink/tls.crt, clientKeyFile: SECRETS/sink/tls.key}}",
			[]string{"sink/tls.crt: cert/tls.crt by spec.sink.tls.clientCertSecretRef", "sink/tls.key: other/tls.key by spec.sink.tls.clientKeySecretRef"},
		},
		"a certificate with another key, and its private key by default": {
			"sink: {kafka: {brokers: [a:9093]}, tls: {clientCertSecretRef: {name: cert, key: chain.pem}}}",
			"sink: {kafka: {brokers: [a:9093]}, tls: {clientCertFile: SECRETS/sink/tls.crt, clientKeyFile: SECRETS/sink/tls.key}}",
			[]string{"sink/tls.crt: cert/chain.pem by spec.sink.tls.clientCertSecretRef", "sink/tls.key: cert/tls.key by spec.sink.tls.clientCertSecretRef"},
		},
		"a certificate of cert-manager": {
			"sink: {rabbitmq: {addresses: [a:5671]}, auth: {type: External}, tls: {clientCertSecretRef: {name: orders}}}",
			"sink: {rabbitmq: {addresses: [a:5671]}, auth: {type: External}, tls: {clientCertFile: SECRETS/sink/tls.crt, clientKeyFile: SECRETS/sink/tls.key}}",
			[]string{"sink/tls.crt: orders/tls.crt by spec.sink.tls.clientCertSecretRef", "sink/tls.key: orders/tls.key by spec.sink.tls.clientCertSecretRef"},
		},
		"a token, and TLS with the system's roots": {
			"sink: {kafka: {brokers: [b:9092, a:9092]}, auth: {type: OAuthBearer, secretRef: {name: t, key: jwt}}, tls: {}}",
			"sink: {kafka: {brokers: [a:9092, b:9092]}, auth: {type: OAuthBearer, secretFile: SECRETS/sink/token}, tls: {}}",
			[]string{"sink/token: t/jwt by spec.sink.auth.secretRef"},
		},
		"other keys, and an authority in a ConfigMap": {
			"sink: {rabbitmq: {addresses: [a:5671]}, auth: {type: Plain, usernameKey: user, secretRef: {name: r, key: pass}}, tls: {caConfigMapRef: {name: roots, key: bundle.pem}, serverName: r}}",
			"sink: {rabbitmq: {addresses: [a:5671]}, auth: {type: Plain, usernameFile: SECRETS/sink/username, secretFile: SECRETS/sink/password}, tls: {caFile: SECRETS/sink/ca.crt, serverName: r}}",
			[]string{"sink/username: r/user by spec.sink.auth.secretRef", "sink/password: r/pass by spec.sink.auth.secretRef", "sink/ca.crt: ConfigMap roots/bundle.pem by spec.sink.tls.caConfigMapRef"},
		},
		"an authority in a ConfigMap": {
			"sink: {redis: {addresses: [a:6379]}, tls: {caConfigMapRef: {name: roots}}}",
			"sink: {redis: {addresses: [a:6379]}, tls: {caFile: SECRETS/sink/ca.crt}}",
			[]string{"sink/ca.crt: ConfigMap roots/ca.crt by spec.sink.tls.caConfigMapRef"},
		},
		"the identity of the pod": {
			"sink: {kafka: {brokers: [a:9098]}, auth: {type: AWSMSKIAM}, tls: {}}",
			"sink: {kafka: {brokers: [a:9098]}, auth: {type: AWSMSKIAM}, tls: {}}",
			nil,
		},
		"NATS credentials": {
			"sink: {nats: {servers: ['nats://a:4222']}, auth: {type: Credentials, secretRef: {name: creds, key: user.creds}}}",
			"sink: {nats: {servers: ['nats://a:4222']}, auth: {type: Credentials, secretFile: SECRETS/sink/credentials}}",
			[]string{"sink/credentials: creds/user.creds by spec.sink.auth.secretRef"},
		},
		"NATS credentials by default": {
			"sink: {nats: {servers: ['nats://a:4222']}, auth: {type: Credentials, secretRef: {name: creds}}}",
			"sink: {nats: {servers: ['nats://a:4222']}, auth: {type: Credentials, secretFile: SECRETS/sink/credentials}}",
			[]string{"sink/credentials: creds/credentials by spec.sink.auth.secretRef"},
		},
		"an NKey": {
			"sink: {nats: {servers: ['nats://a:4222']}, auth: {type: NKey, secretRef: {name: creds}}}",
			"sink: {nats: {servers: ['nats://a:4222']}, auth: {type: NKey, secretFile: SECRETS/sink/nkey}}",
			[]string{"sink/nkey: creds/nkey by spec.sink.auth.secretRef"},
		},
		"a NATS token": {
			"sink: {nats: {servers: ['nats://a:4222']}, auth: {type: Token, secretRef: {name: creds}}}",
			"sink: {nats: {servers: ['nats://a:4222']}, auth: {type: Token, secretFile: SECRETS/sink/token}}",
			[]string{"sink/token: creds/token by spec.sink.auth.secretRef"},
		},
		"a password": {
			"sink: {redis: {addresses: [a:6379]}, auth: {type: Password, secretRef: {name: r, key: redis-password}}}",
			"sink: {redis: {addresses: [a:6379]}, auth: {type: Password, secretFile: SECRETS/sink/password}}",
			[]string{"sink/password: r/redis-password by spec.sink.auth.secretRef"},
		},
		"a bearer token, and signing": {
			"sink: {http: {url: 'https://a', signingSecretRef: {name: s, key: k}}, auth: {type: Token, secretRef: {name: h, key: t}}}",
			"sink: {http: {url: 'https://a', signingSecretFile: SECRETS/sink/secret}, auth: {type: Token, secretFile: SECRETS/sink/token}}",
			[]string{"sink/token: h/t by spec.sink.auth.secretRef", "sink/secret: s/k by spec.sink.http.signingSecretRef"},
		},
		"signing by default": {
			"sink: {http: {url: 'https://a', signingSecretRef: {name: s}}}",
			"sink: {http: {url: 'https://a', signingSecretFile: SECRETS/sink/secret}}",
			[]string{"sink/secret: s/secret by spec.sink.http.signingSecretRef"},
		},
		"the registry's, in addition to the sink's": {
			"{sink: {http: {url: 'https://a'}, auth: {type: Token, secretRef: {name: h}}}, message: {schemaRegistry: {url: 'https://r', auth: {type: Token, secretRef: {name: r}}, tls: {caSecretRef: {name: ca}}}}}",
			"{sink: {http: {url: 'https://a'}, auth: {type: Token, secretFile: SECRETS/sink/token}}, message: {schemaRegistry: {url: 'https://r', auth: {type: Token, secretFile: SECRETS/message/token}, tls: {caFile: SECRETS/message/ca.crt}}}}",
			[]string{"sink/token: h/token by spec.sink.auth.secretRef", "message/token: r/token by spec.message.schemaRegistry.auth.secretRef", "message/ca.crt: ca/ca.crt by spec.message.schemaRegistry.tls.caSecretRef"},
		},
		"an inbox": {
			"sink: {postgres: {secretRef: {name: db}}, tls: {caSecretRef: {name: ca}}, timeout: 5s}",
			"sink: {postgres: {dsnFile: SECRETS/sink/dsn}, tls: {caFile: SECRETS/sink/ca.crt}, timeout: 5s}",
			[]string{"sink/dsn: db/dsn by spec.sink.postgres.secretRef", "sink/ca.crt: ca/ca.crt by spec.sink.tls.caSecretRef"},
		},
		"an inbox with an IAM login": {
			"sink: {postgres: {secretRef: {name: db, key: uri}, iam: {provider: Google}}}",
			"sink: {postgres: {dsnFile: SECRETS/sink/dsn, iam: {provider: Google}}}",
			[]string{"sink/dsn: db/uri by spec.sink.postgres.secretRef"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			obd := minimal()
			obd.Spec.Sink = v1alpha1.Sink{}
			read(t, test.spec, &obd.Spec)
			c, refs := withRefs(obd, nil)
			var want spec.Config
			read(t, test.file, &want)
			if !reflect.DeepEqual(c.Sink, want.Sink) || !reflect.DeepEqual(c.Message.SchemaRegistry, want.Message.SchemaRegistry) {
				t.Errorf("the file is\n%s\nwant\n%s", render(c), render(want))
			}
			mounted(t, refs, append([]string{"database/dsn: orders-db/dsn by spec.database.secretRef"}, test.mounts...))
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
			spec: "{secretRef: {name: app}, secretKeys: {}, tls: {caSecretRef: {name: db-ca}}, migration: {secretRef: {name: owner, key: uri}}}",
			file: "{connection: {hostFile: SECRETS/database/host, portFile: SECRETS/database/port, databaseFile: SECRETS/database/dbname, " +
				"userFile: SECRETS/database/username, passwordFile: SECRETS/database/password}, caFile: SECRETS/database/ca.crt}",
			migration: "{dsnFile: SECRETS/migration/dsn, caFile: SECRETS/database/ca.crt}",
			mounts: []string{"database/host: app/host by Outbox main: spec.secretRef", "database/port: app/port by Outbox main: spec.secretRef", "database/dbname: app/dbname by Outbox main: spec.secretRef",
				"database/username: app/username by Outbox main: spec.secretRef", "database/password: app/password by Outbox main: spec.secretRef", "database/ca.crt: db-ca/ca.crt by Outbox main: spec.tls.caSecretRef"},
			migrates: []string{"migration/dsn: owner/uri by spec.migration.secretRef"},
		},
		"Zalando": {
			spec:      "{server: {host: acid-orders, port: 5432, database: shop}, secretRef: {name: app}, migration: {secretRef: {name: owner}}}",
			file:      "{connection: {host: acid-orders, port: 5432, database: shop, userFile: SECRETS/database/username, passwordFile: SECRETS/database/password}}",
			migration: "{connection: {host: acid-orders, port: 5432, database: shop, userFile: SECRETS/migration/username, passwordFile: SECRETS/migration/password}}",
			mounts:    []string{"database/username: app/username by Outbox main: spec.secretRef", "database/password: app/password by Outbox main: spec.secretRef"},
			migrates:  []string{"migration/username: owner/username by spec.migration.secretRef", "migration/password: owner/password by spec.migration.secretRef"},
		},
		"a server, and an owner by a connection string": {
			spec:      "{server: {host: acid-orders, port: 5432, database: shop}, secretRef: {name: app}, migration: {secretRef: {name: owner, key: uri}}}",
			file:      "{connection: {host: acid-orders, port: 5432, database: shop, userFile: SECRETS/database/username, passwordFile: SECRETS/database/password}}",
			migration: "{dsnFile: SECRETS/migration/dsn}",
			mounts:    []string{"database/username: app/username by Outbox main: spec.secretRef", "database/password: app/password by Outbox main: spec.secretRef"},
			migrates:  []string{"migration/dsn: owner/uri by spec.migration.secretRef"},
		},
		"a user as it is": {
			spec:      "{server: {host: a, port: 1, database: b}, user: app, secretRef: {name: s}, secretKeys: {password: pw}, migration: {}}",
			file:      "{connection: {host: a, port: 1, database: b, user: app, passwordFile: SECRETS/database/password}}",
			migration: "{connection: {host: a, port: 1, database: b, user: app, passwordFile: SECRETS/database/password}}",
			mounts:    []string{"database/password: s/pw by Outbox main: spec.secretRef"},
		},
		"IAM": {
			spec:      "{server: {host: a, port: 5432, database: b}, user: app, iam: {provider: AWS, region: eu-west-1}, tls: {mode: Require}, migration: {user: owner}}",
			file:      "{connection: {host: a, port: 5432, database: b, user: app}, sslMode: Require, iam: {provider: AWS, region: eu-west-1}}",
			migration: "{connection: {host: a, port: 5432, database: b, user: owner}, sslMode: Require, iam: {provider: AWS, region: eu-west-1}}",
		},
		"IAM, and the rest in a Secret": {
			spec: "{secretRef: {name: s}, secretKeys: {}, iam: {provider: Azure}, tls: {mode: Require}}",
			file: "{connection: {hostFile: SECRETS/database/host, portFile: SECRETS/database/port, databaseFile: SECRETS/database/dbname, userFile: SECRETS/database/username}, sslMode: Require, iam: {provider: Azure}}",
			mounts: []string{"database/host: s/host by Outbox main: spec.secretRef", "database/port: s/port by Outbox main: spec.secretRef",
				"database/dbname: s/dbname by Outbox main: spec.secretRef", "database/username: s/username by Outbox main: spec.secretRef"},
		},
		"certificates": {
			spec: "{server: {host: a, port: 5432, database: b}, user: app, tls: {mode: VerifyFull, caConfigMapRef: {name: roots}, clientCertSecretRef: {name: app}}, " +
				"migration: {user: owner, clientCertSecretRef: {name: owner, key: c}, clientKeySecretRef: {name: owner-key, key: k}}}",
			file: "{connection: {host: a, port: 5432, database: b, user: app}, sslMode: VerifyFull, caFile: SECRETS/database/ca.crt, " +
				"clientCertFile: SECRETS/database/tls.crt, clientKeyFile: SECRETS/database/tls.key}",
			migration: "{connection: {host: a, port: 5432, database: b, user: owner}, sslMode: VerifyFull, caFile: SECRETS/database/ca.crt, " +
				"clientCertFile: SECRETS/migration/tls.crt, clientKeyFile: SECRETS/migration/tls.key}",
			mounts: []string{"database/ca.crt: ConfigMap roots/ca.crt by Outbox main: spec.tls.caConfigMapRef",
				"database/tls.crt: app/tls.crt by Outbox main: spec.tls.clientCertSecretRef", "database/tls.key: app/tls.key by Outbox main: spec.tls.clientCertSecretRef"},
			migrates: []string{"migration/tls.crt: owner/c by spec.migration.clientCertSecretRef", "migration/tls.key: owner-key/k by spec.migration.clientKeySecretRef"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			obd, outbox := minimal(), whatever()
			obd.Spec.Database, obd.Spec.OutboxRef, outbox.Spec = nil, &v1alpha1.OutboxRef{Name: "main"}, v1alpha1.OutboxSpec{}
			read(t, test.spec, &outbox.Spec)
			var migrates spec.Config
			if Migrates(&outbox.Spec) {
				migrates, _ = migrationConfigs(outbox)
			}
			for what, file := range map[string]struct {
				got  spec.Config
				want string
			}{"dispatchers": {Config(obd, outbox), test.file}, "migration": {migrates, test.migration}} {
				if file.want == "" {
					continue
				}
				var want spec.Config
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
			mounted(t, DispatcherRefs(obd, outbox), test.mounts)
			if test.migration != "" {
				for i, line := range test.mounts {
					test.mounts[i] = strings.Replace(line, "Outbox main: ", "", 1) // which reads its own
				}
				mounted(t, OutboxRefs(outbox), append(test.mounts, test.migrates...))
			}
		})
	}
}

// The Secrets of an Outbox's notifications are mounted in the pods of each of its dispatchers.
//
// CONTRACT: C-100
func TestNotifyOfTheOutbox(t *testing.T) {
	outbox := &v1alpha1.Outbox{ObjectMeta: metav1.ObjectMeta{Name: "main"}}
	read(t, "{secretRef: {name: db}, notify: {url: 'https://n', auth: {type: Token, secretRef: {name: oncall}}, signingSecretRef: {name: s}, tls: {caSecretRef: {name: ca}}}}", &outbox.Spec)
	obd := minimal()
	obd.Spec.Database, obd.Spec.OutboxRef = nil, &v1alpha1.OutboxRef{Name: "main"}
	var want spec.Notify
	read(t, "{url: 'https://n', auth: {type: Token, secretFile: SECRETS/notify/token}, signingSecretFile: SECRETS/notify/secret, tls: {caFile: SECRETS/notify/ca.crt}}", &want)
	if got := Config(obd, outbox).Notify; !reflect.DeepEqual(got, &want) {
		t.Errorf("the file has %+v, want %+v", got, want)
	}
	mounted(t, DispatcherRefs(obd, outbox), []string{"database/dsn: db/dsn by Outbox main: spec.secretRef", "notify/token: oncall/token by Outbox main: spec.notify.auth.secretRef",
		"notify/secret: s/secret by Outbox main: spec.notify.signingSecretRef", "notify/ca.crt: ca/ca.crt by Outbox main: spec.notify.tls.caSecretRef"})
	if Config(minimal(), nil).Notify != nil {
		t.Error("a dispatcher with a database of its own notifies")
	}
}

// A database of the dispatcher's own is an Outbox with few fields, and messages name those.
//
// CONTRACT: C-100
func TestOwnDatabase(t *testing.T) {
	obd := minimal()
	read(t, "{secretRef: {name: app, key: uri}, schema: shop, caSecretRef: {name: ca, key: root.pem}, migrationSecretRef: {name: owner}}", obd.Spec.Database)
	var want spec.Database
	read(t, "{dsnFile: SECRETS/database/dsn, schema: shop, caFile: SECRETS/database/ca.crt}", &want)
	if got := Config(obd, nil).Database; !reflect.DeepEqual(got, want) {
		t.Errorf("the file has %+v, want %+v", got, want)
	}
	own := []string{"database/dsn: app/uri by spec.database.secretRef", "database/ca.crt: ca/root.pem by spec.database.caSecretRef"}
	mounted(t, DispatcherRefs(obd, nil), own)
	mounted(t, MigrationRefs(obd), append(own, "migration/dsn: owner/dsn by spec.database.migrationSecretRef"))
	obd.Spec.Database.MigrationSecretRef = nil
	if m, err := NewMigration(obd, flags); m != nil || err != nil || MigrationConfigMap(obd) != nil {
		t.Errorf("without a login that migrates: %+v, %v", m, err)
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

// either are fields of which one can be set, or stands for the other.
var either = [][]string{{"key", "secretKeys"}, {"caSecretRef", "caConfigMapRef"}, {"username", "usernameKey"}, {"secretRef", "secretKeys", "server", "user", "iam"}, {"name", "annotations"}, {"outboxRef", "database"}}

// The sample that says that it sets every field does.
func TestEverythingIsEverything(t *testing.T) {
	set := sampled(t, "http-everything.yaml")
	walk(func(f field) {
		if !f.leaf() || otherSink(f.path) || set[f.path] ||
			strings.HasPrefix(f.path, "delivery.tenantRateLimit") || // not for ordering Key: fairness.yaml has it
			strings.HasPrefix(f.path, "message.headers") { // not for contentMode Batch: message-headers.yaml has them
			return
		}
		parts := strings.Split(f.path, ".")
		for i, part := range parts {
			for _, one := range either {
				for _, other := range one {
					if slices.Contains(one, part) && other != part && set[strings.Join(append(slices.Clone(parts[:i]), other), ".")] {
						return
					}
				}
			}
		}
		t.Errorf("config/samples/http-everything.yaml does not set %s", f.path)
	})
}

// otherSink reports whether the field is one of another kind of sink than http.
func otherSink(path string) bool {
	parts := strings.Split(path, ".")
	return len(parts) > 1 && parts[0] == "sink" && parts[1] != "http" && isSinkKind(parts[1])
}

// Every kind of sink of the file is one of the resource, by the same name, and has a sample.
func TestEverySinkIsEverywhere(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(samples, "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no samples: %v", err)
	}
	shown := map[string]bool{}
	for _, file := range files {
		for path := range sampled(t, filepath.Base(file)) {
			shown[path] = true
		}
	}
	of := func(typ reflect.Type) (names []string) {
		for i := range typ.NumField() {
			names = append(names, named(typ.Field(i)))
		}
		return slices.Sorted(slices.Values(names))
	}
	kinds := reflect.TypeFor[v1alpha1.Sink]()
	if file, resource := of(reflect.TypeFor[spec.Sink]()), of(kinds); !slices.Equal(file, resource) {
		t.Errorf("the file has the sinks %v, the resource %v", file, resource)
	}
	for i := range kinds.NumField() {
		name := named(kinds.Field(i))
		if !isSinkKind(name) {
			continue
		}
		s := v1alpha1.Sink{Auth: &v1alpha1.Auth{}}
		reflect.ValueOf(&s).Elem().Field(i).Set(reflect.New(kinds.Field(i).Type.Elem()))
		if got := SinkKind(s); got != name {
			t.Errorf("sink.%s becomes %q in the file", name, got)
		}
		if !shown["sink."+name] {
			t.Errorf("config/samples has none with sink.%s", name)
		}
	}
}

// samples is where they are.
var samples = filepath.Join("..", "..", "..", "config", "samples")

// sampled are the paths of the spec that a sample sets, those of an Outbox after outbox.
func sampled(t *testing.T, name string) map[string]bool {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(samples, name))
	if err != nil {
		t.Fatal(err)
	}
	set := map[string]bool{}
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		var o struct {
			Kind string
			Spec any
		}
		if err := yaml.Unmarshal([]byte(document), &o); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if in, ok := map[string]string{"OutboxDispatcher": "", "Outbox": "outbox."}[o.Kind]; ok {
			flatten(o.Spec, func(path string, _ any) { set[in+path] = true })
		}
	}
	return set
}
