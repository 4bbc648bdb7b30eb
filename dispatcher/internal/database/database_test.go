package database

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func check(t *testing.T, err error) {
	t.Helper()
	need.OK(t, err)
}

func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	check(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

const secret = "hunter2'x"

// change returns the connection string with something changed.
func change(t *testing.T, dsn string, how func(*url.URL)) string {
	t.Helper()
	u, err := url.Parse(dsn)
	check(t, err)
	how(u)
	return u.String()
}

// Each failure has its word and a remedy, and shows no secret. CONTRACT: C-73, C-101
func TestFailuresHaveAWordAndARemedy(t *testing.T) {
	t.Parallel()
	srv := pgtest.Server(t)
	good := srv.DSN("postgres")
	ca, serverName := enableTLS(t, good)
	admin, err := pgx.Connect(t.Context(), good)
	check(t, err)
	defer admin.Close(context.Background())
	_, err = admin.Exec(t.Context(), "create role visitor login password 'hunter2''x'; create table private (n int)")
	check(t, err)
	_, refused := admin.Exec(t.Context(), "set role visitor; select * from private")
	_, err = admin.Exec(t.Context(), "reset role")
	check(t, err)

	secretly := func(u *url.URL) { u.User = url.UserPassword("visitor", secret) }
	closed := func(u *url.URL) { secretly(u); u.Host = "127.0.0.1:1" }
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	defer silent.Close()

	for name, c := range map[string]struct {
		database spec.Database
		err      error // instead of the one that connecting gives
		reason   string
		want     []string
	}{
		"wrong password": {
			database: spec.Database{DSN: change(t, good, func(u *url.URL) { u.User = url.UserPassword("postgres", secret) })},
			reason:   AuthenticationFailed, want: []string{`password authentication failed for user "postgres"; correct the user and the password`},
		},
		"unknown user": {
			database: spec.Database{DSN: change(t, good, func(u *url.URL) { u.User = url.UserPassword("stranger", secret) })},
			reason:   AuthenticationFailed, want: []string{"stranger"},
		},
		"wrong database": {
			database: spec.Database{DSN: change(t, good, func(u *url.URL) { secretly(u); u.Path = "/elsewhere" })},
			reason:   DatabaseNotFound, want: []string{`database "elsewhere" does not exist; create the database, or correct its name`},
		},
		"no right": {err: refused, reason: PermissionDenied, want: []string{"permission denied for table private", "migrate grants"}},
		"closed port": {
			database: spec.Database{DSN: change(t, good, closed)},
			reason:   ConnectionFailed, want: []string{`at 127.0.0.1:1 as user "visitor": connection refused; check that the server runs`},
		},
		"unknown host": {
			database: spec.Database{DSN: change(t, good, func(u *url.URL) { secretly(u); u.Host = "no-such-host.invalid" })},
			reason:   ConnectionFailed, want: []string{"no-such-host.invalid", "check that the server runs, host and port"},
		},
		"silent server": {
			database: spec.Database{DSN: change(t, good, func(u *url.URL) {
				secretly(u)
				u.Host = silent.Addr().String()
				u.RawQuery = "sslmode=disable&connect_timeout=1"
			})},
			reason: ConnectionFailed, want: []string{"no response in time; check host, port"},
		},
		"certificate of another authority": {
			database: spec.Database{DSN: change(t, good, secretly), SSLMode: "VerifyCA", CAFile: file(t, sinktest.NewAuthority(t, "test").PEM)},
			reason:   CertificateInvalid, want: []string{"signed by unknown authority", "; set the database's tls.caSecretRef or tls.caConfigMapRef", "none that is there"},
		},
		"certificate for another name": {
			database: spec.Database{DSN: change(t, good, secretly), SSLMode: "VerifyFull", CAFile: file(t, ca)},
			reason:   CertificateInvalid, want: []string{"127.0.0.1", "connect by a name that the server's certificate has"},
		},
		"certificate for another name, in a string with a CA": {
			database: spec.Database{DSN: change(t, good, secretly), CAFile: file(t, ca)},
			reason:   CertificateInvalid, want: []string{"127.0.0.1", "connect by a name that the server's certificate has"},
		},
		"no CA file": {
			database: spec.Database{DSN: change(t, good, secretly), SSLMode: "VerifyFull", CAFile: "/does/not/exist"},
			reason:   CertificateInvalid, want: []string{"the database's tls.caSecretRef or caConfigMapRef cannot be read", "/does/not/exist"},
		},
		"empty CA file": {
			database: spec.Database{DSN: change(t, good, secretly), SSLMode: "VerifyFull", CAFile: file(t, "x")},
			reason:   CertificateInvalid, want: []string{"holds no PEM certificate; put"},
		},
		"no connection string": {
			database: spec.Database{DSN: "postgres://visitor:" + secret + "@host:port%zz/db"},
			reason:   ConnectionFailed, want: []string{"the DSN does not make a valid connection string; write it as"},
		},
		"no connection string, with TLS": {
			database: spec.Database{DSN: "postgres://visitor:" + secret + "@host:port%zz/db", SSLMode: "Require"},
			reason:   ConnectionFailed, want: []string{"the DSN does not make a valid connection string; write it as"},
		},
		"no connection string in a file": {
			database: spec.Database{DSNFile: file(t, "password="+secret+" and more")},
			reason:   ConnectionFailed, want: []string{"the database's secretRef (", ") does not make a valid connection string"},
		},
		"no file": {
			database: spec.Database{DSNFile: "/does/not/exist"},
			reason:   AuthenticationFailed, want: []string{"the database's secretRef cannot be read; create the file", "/does/not/exist"},
		},
		"empty file": {
			database: spec.Database{Connection: &spec.Connection{HostFile: file(t, "\n")}},
			reason:   AuthenticationFailed, want: []string{"the database's secretRef (", ") is empty; fill it"},
		},
	} {
		err := c.err
		if err == nil {
			var conn *pgx.Conn
			if conn, err = Connect(t.Context(), c.database, "test"); err == nil {
				conn.Close(t.Context())
				t.Errorf("%s: connected", name)
				continue
			}
		}
		reason, message := Classify(err)
		need.That(t, reason == c.reason, "%s: reason %s, want %s (%s)", name, reason, c.reason, message)
		for _, want := range c.want {
			need.That(t, strings.Contains(message, want), "%s: message %q\nwant %q", name, message, want)
		}
		for _, text := range []string{message, err.Error()} {
			need.That(t, !strings.Contains(text, "hunter2"), "%s: shows the password: %s", name, text)
		}
	}

	for mode, c := range map[string]spec.Database{
		"verify-full by name":  {DSN: change(t, good, func(u *url.URL) { u.Host = net.JoinHostPort(serverName, u.Port()) }), SSLMode: "VerifyFull", CAFile: file(t, ca)},
		"verify-ca":            {DSN: good, SSLMode: "VerifyCA", CAFile: file(t, ca)},
		"key=value words":      {DSN: "host=127.0.0.1 port=" + strconv.Itoa(srv.Port) + " user=visitor password='hunter2\\'x' dbname=postgres sslmode=disable", SSLMode: "VerifyCA", CAFile: file(t, ca)},
		"a string with a CA":   {DSN: change(t, good, func(u *url.URL) { u.Host = net.JoinHostPort(serverName, u.Port()) }), CAFile: file(t, ca)},
		"which says verify-ca": {DSN: change(t, good, func(u *url.URL) { u.RawQuery = "sslmode=verify-ca" }), CAFile: file(t, ca)},
	} {
		conn, err := Connect(t.Context(), c, "test")
		if err != nil {
			t.Errorf("%s: %v", mode, err)
			continue
		}
		var encrypted bool
		check(t, conn.QueryRow(t.Context(), "select ssl from pg_stat_ssl where pid = pg_backend_pid()").Scan(&encrypted))
		need.That(t, encrypted, "%s: the connection is not encrypted", mode)
		conn.Close(t.Context())
	}
}

// A password that was rotated works at the next connection of the same pool. CONTRACT: C-102
func TestPoolReadsFilesAtEachConnection(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	u, err := url.Parse(pgtest.Empty(t))
	check(t, err)
	admin := pgtest.Pool(t, u.String())
	role := "rotated_" + strings.TrimPrefix(u.Path, "/")
	_, err = admin.Exec(ctx, "create role "+role+" login password 'first'")
	check(t, err)
	t.Cleanup(func() {
		if _, err := pgtest.Pool(t, u.String()).Exec(context.Background(), "drop role "+role); err != nil {
			t.Error(err)
		}
	})
	password := file(t, "first\n")
	d := spec.Database{SSLMode: "Disable", Connection: &spec.Connection{
		HostFile: file(t, u.Hostname()), PortFile: file(t, u.Port()), DatabaseFile: file(t, strings.TrimPrefix(u.Path, "/")),
		UserFile: file(t, role+"\n"), PasswordFile: password,
	}}
	port, err := strconv.Atoi(u.Port())
	check(t, err)
	known, err := Connect(ctx, spec.Database{SSLMode: "Disable", Connection: &spec.Connection{ // all but the password
		Host: u.Hostname(), Port: port, Database: strings.TrimPrefix(u.Path, "/"), User: role, PasswordFile: password,
	}}, "orders")
	check(t, err)
	check(t, known.Close(ctx))
	pool, err := Pool(ctx, d, "orders")
	check(t, err)
	defer pool.Close()
	var user, application string
	check(t, pool.QueryRow(ctx, "select current_user, current_setting('application_name')").Scan(&user, &application))
	need.That(t, user == role && application == "outbox-dispatcher/orders", "connected as %s, application %s", user, application)
	if login, err := Login(d); login != role || err != nil {
		t.Errorf("login %q, %v, want %q", login, err, role)
	}

	_, err = admin.Exec(ctx, "alter role "+role+" password 'second'")
	check(t, err)
	pool.Reset() // as if the connections had broken
	if reason, message := Classify(pool.Ping(ctx)); reason != AuthenticationFailed {
		t.Fatalf("with the old password: %s, %s", reason, message)
	}
	check(t, os.WriteFile(password, []byte("second\n"), 0o600))
	if err := pool.Ping(ctx); err != nil {
		t.Errorf("with the new password: %v", err)
	}
}

// A configuration may name several servers, in each of its forms. Of them the one that takes writes is
// meant, unless it says otherwise.
func TestOfSeveralHostsThePrimaryIsUsed(t *testing.T) {
	t.Parallel()
	for name, d := range map[string]spec.Database{
		"URL":             {DSN: "postgres://u:p@a:1,b:2/db"},
		"URL, with TLS":   {DSN: "postgres://u:p@a:1,b:2/db", SSLMode: "Require"},
		"and options":     {DSN: "postgres://u:p@a:1,b:2/db?options=-c%20x.y%3D1", SSLMode: "Require"},
		"and a password":  {DSN: `postgres://u:?^{|"@a:1,b:2?sslmode=disable&options=-c%20x.y%3D1&`, SSLMode: "Require"},
		"without options": {DSN: "postgres://u:?@a:1,b:2/db", SSLMode: "Require"},
		"and ports":       {DSN: "postgres://u:p@[a]:1,[b]:2/db?", SSLMode: "Require"},
		"key=value words": {DSN: "host=a,b port=1,2 user=u dbname=db"},
		"files":           {Connection: &spec.Connection{HostFile: file(t, "a,b\n"), PortFile: file(t, "1,2\n"), UserFile: file(t, "u")}},
	} {
		c, err := connConfig(d, "orders")
		check(t, err)
		last := c.Fallbacks[len(c.Fallbacks)-1]
		need.That(t, c.Host == "a" && c.Port == 1 && last.Host == "b" && last.Port == 2, "%s: %s:%d to %s:%d", name, c.Host, c.Port, last.Host, last.Port)
		if strings.Contains(d.DSN, "options") && c.RuntimeParams["options"] != "-c x.y=1" || d.SSLMode != "" && c.TLSConfig == nil {
			t.Errorf("%s: options %q, TLS %t", name, c.RuntimeParams["options"], c.TLSConfig != nil)
		}
		if c.ValidateConnect == nil || strings.Contains(d.DSN, "/db") && c.Database != "db" {
			t.Errorf("%s: any of them would do, or database %q is not db", name, c.Database)
		}
	}
	standby, err := connConfig(spec.Database{DSN: "postgres://u:p@a,b/db?target_session_attrs=standby"}, "orders")
	check(t, err)
	srv := pgtest.Server(t)
	conn, err := pgx.Connect(t.Context(), srv.DSN("postgres"))
	check(t, err)
	defer conn.Close(context.Background())
	if err := standby.ValidateConnect(t.Context(), conn.PgConn()); err == nil {
		t.Error("the target of the connection string is not heeded")
	}
}

// A password that is not percent-encoded would be taken for a host or a database, which messages name.
//
// CONTRACT: C-73
func TestPasswordThatIsNotEncodedIsInNoMessage(t *testing.T) {
	for _, dsn := range []string{
		"postgres://u:Tr0ub4@dor/Secret99@127.0.0.1:1/shop", "postgres://u:4711/Secret99@127.0.0.1:1/shop", "postgresql://u:4711#Secret99@127.0.0.1:1/shop",
		"postgres://u:p@4711/Secret99@127.0.0.1:1/shop?application_name=a@b",
	} {
		_, err := Connect(t.Context(), spec.Database{DSN: dsn}, "orders")
		if err == nil || !strings.Contains(err.Error(), "special characters of the password percent-encoded") || strings.Contains(err.Error(), "Secret99") || strings.Contains(err.Error(), "4711") {
			t.Errorf("%s: %v", dsn, err)
		}
	}
	for _, dsn := range []string{
		"postgres://u:p%2Fq@127.0.0.1:1/shop", "postgres://u:p@q@127.0.0.1:1/shop", "postgres://127.0.0.1:1/shop?user=u&password=a@b", "postgres://127.0.0.1:1?user=a@b", "host=127.0.0.1 port=1 password=a/b@c",
	} {
		if _, err := connConfig(spec.Database{DSN: dsn}, "orders"); err != nil {
			t.Errorf("%s: %v", dsn, err)
		}
	}
}

func TestPoolRefusesABadStringAtOnce(t *testing.T) {
	if _, err := Pool(t.Context(), spec.Database{DSN: "postgres://u:p@:x/"}, "orders"); err == nil {
		t.Error("no error")
	}
	pool, err := Pool(t.Context(), spec.Database{DSNFile: "/does/not/exist"}, "orders")
	if err != nil {
		t.Errorf("a file may come later, and yet: %v", err)
	} else {
		pool.Close()
	}
}

// A connection string may stand in the environment, where it is as secret as elsewhere.
func TestConnectionStringOfTheEnvironment(t *testing.T) {
	const name = "OUTBOX_TEST_DSN"
	d := spec.Database{DSNFile: spec.Variable + name}
	for value, want := range map[string]string{
		"":                       "the database's secretRef (env:OUTBOX_TEST_DSN) is empty; fill it",
		"postgres://u:s3cr3t@:x": "the database's secretRef (env:OUTBOX_TEST_DSN) does not make a valid connection string",
	} {
		t.Setenv(name, value)
		if _, err := Connect(t.Context(), d, "orders"); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("with %q: got %v, want %q", value, err, want)
		}
	}
	t.Setenv(name, "postgres://reader:s3cr3t@db.example/shop\n")
	if login, err := Login(d); err != nil || login != "reader" {
		t.Errorf("got %q, %v, want reader", login, err)
	}
}

// enableTLS gives the server a certificate for a name, and returns the authority's.
func enableTLS(t *testing.T, dsn string) (ca, serverName string) {
	t.Helper()
	const name = "localhost"
	signer := sinktest.NewAuthority(t, "test")
	leaf := signer.Sign(t, "server", sinktest.InAnHour(), name)
	ctx := t.Context()
	conn, err := pgx.Connect(ctx, dsn)
	check(t, err)
	defer conn.Close(ctx)
	put(t, conn, "server.crt", leaf.CertPEM)
	put(t, conn, "server.key", leaf.KeyPEM)
	for _, sql := range []string{"alter system set ssl = on", "select pg_reload_conf()"} {
		_, err = conn.Exec(ctx, sql)
		check(t, err)
	}
	for on := ""; on != "on"; { // the reload is a signal; a new connection shows when it has arrived
		fresh, err := pgx.Connect(ctx, dsn)
		check(t, err)
		check(t, fresh.QueryRow(ctx, "show ssl").Scan(&on))
		fresh.Close(ctx)
	}
	return signer.PEM, name
}

func newPool(t *testing.T, dsn string) *pgxpool.Pool {
	t.Helper()
	pool, err := Pool(t.Context(), spec.Database{DSN: dsn}, "orders")
	check(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// preparedStatements counts those of the session, with a statement that would be one of them.
func preparedStatements(t *testing.T, c interface {
	Query(context.Context, string, ...any) (pgx.Rows, error)
}) int {
	t.Helper()
	rows, err := c.Query(t.Context(), "select count(*) from pg_prepared_statements where $1::int = 1", 1)
	check(t, err)
	n, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[int])
	check(t, err)
	return n
}

// Prepared statements spare planning. Behind a PgBouncer in transaction mode there are none, and no
// statement fails before that is known, however many processes have used its sessions before.
func TestPreparedStatementsEndBehindAPooler(t *testing.T) {
	t.Parallel()
	srv := pgtest.Server(t)
	need.Want(t, 1, "%d prepared statements, want one", preparedStatements(t, newPool(t, srv.DSN("postgres"))))
	bouncer := pgtest.Bouncer(t, srv)
	for range 2 { // two processes
		pool := newPool(t, bouncer.DSN("postgres"))
		held, err := pool.Begin(t.Context()) // holds a server session, so that the others get another one
		check(t, err)
		t.Cleanup(func() { _ = held.Rollback(context.Background()) }) // when the test fails before it ends it
		for _, c := range []interface {
			Query(context.Context, string, ...any) (pgx.Rows, error)
		}{held, pool, held, pool} {
			need.Want(t, 0, "%d prepared statements behind PgBouncer", preparedStatements(t, c))
		}
		check(t, held.Rollback(t.Context()))
	}
}

// One connection that breaks takes the others with it: they lead to the same server.
func TestPoolReconnectsWhenOneConnectionBreaks(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	dsn := pgtest.Empty(t)
	pool, admin := newPool(t, dsn), pgtest.Pool(t, dsn)
	var conns []*pgxpool.Conn
	for range poolSize {
		conn, err := pool.Acquire(ctx)
		check(t, err)
		conns = append(conns, conn)
	}
	broken := conns[0]
	for _, conn := range conns[1:] {
		conn.Release()
	}
	_, err := admin.Exec(ctx, "select pg_terminate_backend($1)", broken.Conn().PgConn().PID())
	check(t, err)
	if _, err := broken.Exec(ctx, "select 1"); err == nil {
		t.Error("a terminated connection works")
	}
	broken.Release()
	wantConns(t, pool, 0)

	conn, err := pool.Acquire(ctx)
	check(t, err)
	idle, err := pool.Acquire(ctx)
	check(t, err)
	idle.Release()
	_, err = conn.Exec(ctx, "begin read only; create table refused ()", pgx.QueryExecModeSimpleProtocol)
	if reason, message := Classify(err); reason != ConnectionFailed || err == nil {
		t.Errorf("a transaction that only reads: %s, %s", reason, message)
	}
	conn.Release()
	wantConns(t, pool, 0)
}

func wantConns(t *testing.T, pool *pgxpool.Pool, want int32) {
	t.Helper()
	pgtest.Eventually(t, fmt.Sprintf("the pool has %d connections", want), func() bool { return pool.Stat().TotalConns() == want })
}

// Transactions run at READ COMMITTED whatever the login's default is, in every mode of pgx, and the default is
// reported.
func TestTransactionsAreReadCommitted(t *testing.T) {
	t.Parallel()
	dsn := pgtest.Empty(t)
	admin := pgtest.Pool(t, dsn)
	role := "strict_" + strings.ToLower(rand.Text())
	for _, sql := range []string{
		`create role ` + role + ` login password 'test'`,
		`alter role ` + role + ` set default_transaction_isolation = 'serializable'`,
	} {
		_, err := admin.Exec(t.Context(), sql)
		check(t, err)
	}
	t.Cleanup(func() {
		_, err := admin.Exec(context.Background(), `drop role `+role)
		check(t, err)
	})
	for name, option := range map[string]string{"as it is": "", "exec": "exec", "simple": "simple_protocol"} {
		t.Run(name, func(t *testing.T) {
			pool := newPool(t, change(t, dsn, func(u *url.URL) {
				u.User = url.UserPassword(role, "test")
				if option != "" {
					u.RawQuery += "&default_query_exec_mode=" + option
				}
			}))
			wantLevel(t, pool, "read committed")
			detail, err := Isolation(t.Context(), pool)
			need.That(t, err == nil && strings.Contains(detail, "serializable") && strings.Contains(detail, role), "reported %q, %v", detail, err)
		})
	}
	conn, err := Connect(t.Context(), spec.Database{DSN: change(t, dsn, func(u *url.URL) { u.User = url.UserPassword(role, "test") })}, "orders")
	check(t, err)
	defer conn.Close(context.Background())
	var level string
	check(t, conn.QueryRow(t.Context(), `show transaction_isolation`).Scan(&level))
	need.Want(t, "read committed", "a command's transaction runs at %s", level)
}

// Behind a pooler the level is not set, for the session is shared, and the remedy is reported.
func TestIsolationBehindPgBouncer(t *testing.T) {
	t.Parallel()
	srv := pgtest.Server(t)
	bouncer := pgtest.Bouncer(t, srv)
	admin := pgtest.Pool(t, srv.DSN("postgres"))
	for _, sql := range []string{`create database strict`, `alter database strict set default_transaction_isolation = 'repeatable read'`} {
		_, err := admin.Exec(t.Context(), sql)
		check(t, err)
	}
	pool := newPool(t, bouncer.DSN("strict"))
	wantLevel(t, pool, "repeatable read")
	_, err := Isolation(t.Context(), pool)
	need.Must(t, err != nil && strings.Contains(err.Error(), "repeatable read"), "reported %v", err)
	_, remedy, _ := strings.Cut(err.Error(), "run: ")
	_, err = admin.Exec(t.Context(), remedy)
	check(t, err)
	_, err = admin.Exec(t.Context(), `select pg_terminate_backend(pid, 60000) from pg_stat_activity where datname = 'strict'`)
	check(t, err)
	pool = newPool(t, bouncer.DSN("strict"))
	wantLevel(t, pool, "read committed")
	if detail, err := Isolation(t.Context(), pool); err != nil || detail != "read committed" {
		t.Errorf("reported %q, %v", detail, err)
	}
}

func wantLevel(t *testing.T, pool *pgxpool.Pool, want string) {
	t.Helper()
	var level string
	check(t, pool.QueryRow(t.Context(), `show transaction_isolation`).Scan(&level))
	need.Want(t, want, "a transaction runs at %s, want %s", level)
}
