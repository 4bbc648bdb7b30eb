package scenario

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/migrations"
)

// Shop is a database with the three logins that a real installation has.
type Shop struct {
	// Database is its name; Admin is a superuser's connection string to it.
	Database, Admin string
	// Owner migrates the outbox schema, Dispatcher has only the rights that it uses, App is the
	// service that produces.
	Owner, Dispatcher, App Login
}

// Login is a role and its password.
type Login struct{ User, Password string }

// NewShop creates the database, the logins and the shop's own table. The outbox schema is not made:
// that is the migration's part. adminDSN(database) is a superuser's connection string.
// It returns an error when a statement fails.
func NewShop(ctx context.Context, database string, adminDSN func(database string) string) (*Shop, error) {
	s := &Shop{
		Database:   database,
		Admin:      adminDSN(database),
		Owner:      Login{database + "_owner", rand.Text()},
		Dispatcher: Login{database + "_dispatcher", rand.Text()},
		App:        Login{database + "_app", rand.Text()},
	}
	var roles []string
	for _, l := range []Login{s.Owner, s.Dispatcher, s.App} {
		roles = append(roles, fmt.Sprintf("create role %s login password '%s'", l.User, l.Password))
	}
	roles = append(roles, fmt.Sprintf("create database %s owner %s", database, s.Owner.User))
	if err := execAll(ctx, adminDSN("postgres"), roles...); err != nil {
		return nil, fmt.Errorf("create database %s and its logins: %w", database, err)
	}
	err := execAll(ctx, s.Admin,
		`create table orders (
			id uuid primary key,
			customer text not null,
			total_cents bigint not null,
			created_at timestamptz not null default now())`,
		"grant select, insert on orders to "+s.App.User,
	)
	if err != nil {
		return nil, fmt.Errorf("create the shop's table: %w", err)
	}
	return s, nil
}

// GrantApp gives the application's login what a producer needs, once the outbox schema is there.
// It returns an error when a statement fails.
func (s *Shop) GrantApp(ctx context.Context) error {
	if err := execAll(ctx, s.Admin, migrations.Grants("outbox", s.App.User, migrations.Producer)...); err != nil {
		return fmt.Errorf("grant the producer's rights to %s: %w", s.App.User, err)
	}
	return nil
}

// DSN is a login's connection string, for a client that sees the server at host and port.
func (s *Shop) DSN(l Login, host string, port int) string {
	u := url.URL{Scheme: "postgres", User: url.UserPassword(l.User, l.Password), Host: fmt.Sprintf("%s:%d", host, port), Path: s.Database, RawQuery: "sslmode=disable"}
	return u.String()
}

func execAll(ctx context.Context, dsn string, statements ...string) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for _, sql := range statements {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// Manifests are the namespace, the Secrets and the OutboxDispatcher of the story: what a platform
// engineer writes.
type Manifests struct {
	// Namespace and Name of the Kubernetes objects.
	Namespace, Name string
	// DispatcherDSN and OwnerDSN are as pods see the database.
	DispatcherDSN, OwnerDSN string
	// SinkURL is where events go, as pods see it.
	SinkURL string
	// Replicas is the number of pods.
	Replicas int
}

// Secrets are the namespace and the two logins.
func (m Manifests) Secrets() string {
	return fmt.Sprintf(`apiVersion: v1
kind: Namespace
metadata:
  name: %[1]s
  labels:
    pod-security.kubernetes.io/enforce: restricted
---
apiVersion: v1
kind: Secret
metadata: {name: %[2]s-db, namespace: %[1]s}
stringData: {dsn: %[3]q}
---
apiVersion: v1
kind: Secret
metadata: {name: %[2]s-db-owner, namespace: %[1]s}
stringData: {dsn: %[4]q}
`, m.Namespace, m.Name, m.DispatcherDSN, m.OwnerDSN)
}

// Dispatcher is the OutboxDispatcher. Its lease is short, so that a story about a crash is short too.
func (m Manifests) Dispatcher() string {
	return fmt.Sprintf(`apiVersion: outbox.dev/v1alpha1
kind: OutboxDispatcher
metadata: {name: %[2]s, namespace: %[1]s}
spec:
  namespace: shop            # whose events: the outbox namespace,
  topics: [orders]           # and its topics
  database:
    secretRef: {name: %[2]s-db}
    migrationSecretRef: {name: %[2]s-db-owner}
  sink:
    http: {url: %[3]q}
  replicas: %[4]d
  delivery:
    lease: 6s
    pollInterval: 1s
    maxAttempts: 3
    backoff: {base: 1s, max: 2s}
`, m.Namespace, m.Name, m.SinkURL, m.Replicas)
}

// Indent shifts a manifest to the right, for printing.
func Indent(text string) string {
	return "    " + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n    ") + "\n"
}
