// Package database connects to the PostgreSQL that a configuration names, and says in one word and
// one sentence why that fails. It never shows a password or a connection string (CONTRACT C-73).
//
// A configuration may name several hosts, separated by commas, with one port or as many. The server
// that takes writes is used, and looked for again whenever it ends or takes no more: after a failover
// nothing need be restarted.
package database

import (
	"context"
	"crypto/x509"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-operator/outbox-operator/api/spec"
)

const (
	// connectTimeout bounds one attempt to connect, unless the connection string says otherwise.
	connectTimeout = 5 * time.Second
	// poolSize is how many connections a process has: claims, write-backs, lease extensions and queries in the background
	// (backlog, retention, notifications, journal) share them, and wait for one when all are in use.
	poolSize = 4
	// A connection of the pool is replaced after renewAfter, or up to renewSpread later: so a login that was taken
	// back, or rotated, is not used after that.
	renewAfter, renewSpread = 30 * time.Minute, 3 * time.Minute
)

// Pool returns a pool of 4 connections for the dispatcher of that name. It does not connect yet. The files that d
// names are read at each new connection, so a rotated password needs no restart.
// It fails when a DSN is not valid, when a file that goes with it cannot be read, and when the PG*
// environment variables are not usable. What is wrong with DSNFile or Connection is the error of a connection.
func Pool(ctx context.Context, d spec.Database, name string) (*pgxpool.Pool, error) {
	return PoolOf(ctx, d, name, poolSize)
}

// PoolOf is Pool with another number of connections.
func PoolOf(ctx context.Context, d spec.Database, name string, connections int) (*pgxpool.Pool, error) {
	if d.DSN != "" { // it cannot change any more: say now what is wrong with it
		if _, err := connConfig(d, name); err != nil {
			return nil, err
		}
	}
	cfg, err := pgxpool.ParseConfig("")
	if err != nil {
		return nil, fmt.Errorf("the PG* environment variables are not usable: %w; correct or unset them", err)
	}
	cfg.MaxConns = int32(connections)
	cfg.PingTimeout = connectTimeout
	cfg.MaxConnLifetime, cfg.MaxConnLifetimeJitter = renewAfter, renewSpread
	token := tokens(d.IAM)
	w := &watch{}
	cfg.PrepareConn = w.usable
	cfg.BeforeConnect = func(ctx context.Context, c *pgx.ConnConfig) error {
		fresh, err := connConfig(d, name)
		if err != nil {
			return err
		}
		if err := logIn(ctx, token, fresh); err != nil {
			return err
		}
		*c = *fresh
		w.configure(c)
		return nil
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("make a pool of connections: %w", err)
	}
	w.reset = pool.Reset // before the first connection: the pool keeps none ready
	return pool, nil
}

// Connect returns one connection for a command.
// It fails when d is invalid, a file cannot be read, or the server cannot be reached or refuses the login.
func Connect(ctx context.Context, d spec.Database, name string) (*pgx.Conn, error) {
	cfg, err := connConfig(d, name)
	if err != nil {
		return nil, err
	}
	if err := logIn(ctx, tokens(d.IAM), cfg); err != nil {
		return nil, err
	}
	if cfg.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement {
		cfg.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe // see watch: a command gains nothing by it
	}
	return pgx.ConnectConfig(ctx, cfg)
}

// Login returns the name of the user that d logs in as. It fails when d is invalid or a file cannot be read.
func Login(d spec.Database) (string, error) {
	cfg, err := connConfig(d, "")
	if err != nil {
		return "", err
	}
	return cfg.User, nil
}

func connConfig(d spec.Database, name string) (*pgx.ConnConfig, error) {
	dsn, err := connectionString(d)
	if err != nil {
		return nil, err
	}
	if splitsPassword(dsn) {
		return nil, badString(d)
	}
	if dsn, err = secure(dsn, d); err != nil {
		return nil, err
	}
	parsed, err := pgxpool.ParseConfig(dsn) // knows the pool_ parameters that such strings may have
	if err != nil {
		return nil, badString(d) // not err: it quotes the string
	}
	c := parsed.ConnConfig
	if err := present(c, d); err != nil {
		return nil, err
	}
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = connectTimeout
	}
	// A dispatcher writes. Of several hosts the one that takes writes is used, and of one host a server
	// that does not is noticed here, whatever it leads to next time.
	if c.ValidateConnect == nil {
		c.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
	validate := c.ValidateConnect
	c.ValidateConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		if err := validate(ctx, conn); err != nil {
			return err
		}
		return isolate(ctx, conn)
	}
	c.RuntimeParams["application_name"] = "outbox-dispatcher/" + name
	return c, nil
}

// connectionString puts together what d and its files say.
func connectionString(d spec.Database) (string, error) {
	switch {
	case d.DSN != "":
		return d.DSN, nil
	case d.DSNFile != "":
		return readFile("the database's secretRef", d.DSNFile)
	case d.Connection == nil:
		return "", &problem{ConnectionFailed, "no database is named; set the database's secretRef", nil}
	}
	c, port := d.Connection, ""
	if c.Port != 0 {
		port = strconv.Itoa(c.Port)
	}
	var dsn strings.Builder
	for _, part := range []struct{ key, value, path string }{
		{"host", c.Host, c.HostFile},
		{"port", port, c.PortFile},
		{"dbname", c.Database, c.DatabaseFile},
		{"user", c.User, c.UserFile},
		{"password", "", c.PasswordFile},
	} {
		if part.path != "" {
			var err error
			if part.value, err = readFile("the database's secretRef", part.path); err != nil {
				return "", err
			}
		}
		if part.value != "" {
			fmt.Fprintf(&dsn, "%s=%s ", part.key, quote(part.value))
		}
	}
	return dsn.String(), nil
}

func readFile(field, path string) (string, error) {
	text, err := spec.ReadFile(path)
	if err != nil {
		return "", &problem{AuthenticationFailed, fmt.Sprintf("%s cannot be read; create the file, or correct the path", field), err}
	}
	value := strings.TrimSpace(string(text))
	if value == "" {
		return "", &problem{AuthenticationFailed, fmt.Sprintf("%s (%s) is empty; fill it", field, path), nil}
	}
	return value, nil
}

// quote writes a value of a key=value connection string.
func quote(value string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(value) + "'"
}

// sslModes are libpq's names of the modes.
var sslModes = map[string]string{"Disable": "disable", "Prefer": "prefer", "Require": "require", "VerifyCA": "verify-ca", "VerifyFull": "verify-full"}

// secure puts sslMode and caFile into a connection string, over what it says. A caFile without sslMode is for
// VerifyFull, unless the string says verify-ca.
func secure(dsn string, d spec.Database) (string, error) {
	settings := map[string]string{}
	if d.SSLMode != "" {
		settings["sslmode"] = sslModes[d.SSLMode]
	}
	if d.CAFile != "" {
		pem, err := os.ReadFile(d.CAFile)
		if err != nil {
			return "", &problem{CertificateInvalid, "the database's tls.caSecretRef or caConfigMapRef cannot be read; create the file, or correct the path", err}
		}
		if !x509.NewCertPool().AppendCertsFromPEM(pem) {
			return "", &problem{CertificateInvalid, fmt.Sprintf("the database's tls.caSecretRef or caConfigMapRef (%s) holds no PEM certificate; put the certificate of the server's authority there", d.CAFile), nil}
		}
		settings["sslrootcert"] = d.CAFile
		if d.SSLMode == "" && !strings.Contains(dsn, "sslmode=verify-ca") {
			settings["sslmode"] = "verify-full"
		}
	}
	if !strings.HasPrefix(dsn, "postgres://") && !strings.HasPrefix(dsn, "postgresql://") {
		for key, value := range settings {
			dsn += " " + key + "=" + quote(value)
		}
		return dsn, nil
	}
	// Appended, not parsed and written again: a URL of PostgreSQL is not one of net/url. pgx takes the last of two values.
	_, hosts, _ := strings.Cut(dsn, "://")
	if i := strings.IndexAny(hosts, "@/"); i >= 0 && hosts[i] == '@' {
		hosts = hosts[i+1:] // a password may have a ?
	}
	separator := "?"
	if _, query, has := strings.Cut(hosts, "?"); has {
		separator = "&"
		if query == "" || strings.HasSuffix(query, "&") {
			separator = ""
		}
	}
	for key, value := range settings {
		dsn += separator + key + "=" + strings.ReplaceAll(url.QueryEscape(value), "+", "%20") // a + is a plus there
		separator = "&"
	}
	return dsn, nil
}

// splitsPassword reports whether a URL's password has a / or # that is not percent-encoded: a part of it would be taken for
// the host or the database, which messages name.
func splitsPassword(dsn string) bool {
	scheme, rest, _ := strings.Cut(dsn, "://")
	if scheme != "postgres" && scheme != "postgresql" {
		return false
	}
	end := strings.IndexAny(rest, "/?#")
	if end < 0 || rest[end] == '?' {
		return false
	}
	path, _, _ := strings.Cut(rest[end:], "?")
	return strings.Contains(path, "@")
}

func badString(d spec.Database) error {
	where := "the DSN"
	switch {
	case d.DSNFile != "":
		where = "the database's secretRef (" + d.DSNFile + ")"
	case d.Connection != nil:
		where = "the database's secretRef"
	}
	return &problem{ConnectionFailed, where + " does not make a valid connection string; write it as postgres://USER:PASSWORD@HOST:5432/DATABASE, with special characters of the password percent-encoded, or as key=value words", nil}
}

// problem is a failure that is known before the database is queried.
type problem struct {
	reason, message string
	err             error
}

func (p *problem) Error() string {
	if p.err != nil {
		return fmt.Sprintf("%s (%v)", p.message, p.err)
	}
	return p.message
}

func (p *problem) Unwrap() error { return p.err }

const isolation = "read committed"

// pooled marks a connection, in its custom data, that leads to a pooler.
const pooled = "pooled"

// isolate makes READ COMMITTED the session's default, or marks the connection as pooled. The dispatcher's
// statements are made for that level. At a higher one, which a login or a database may have as its default,
// claims that meet each other fail.
//
// Nothing is set behind a pooler, such as PgBouncer in transaction mode: the session is shared with others,
// and PgBouncer refuses the setting as a parameter of the connection. There a transaction that fails for its
// level is tried again at READ COMMITTED (package pgstore), and [Isolation] reports the default.
//
// A pooler that shares sessions has to give its clients process ids of its own, or it could not know whose
// statement a client wants to cancel.
func isolate(ctx context.Context, conn *pgconn.PgConn) error {
	result, err := conn.Exec(ctx, "select set_config('default_transaction_isolation', '"+isolation+"', false) where pg_backend_pid() = "+
		strconv.FormatUint(uint64(conn.PID()), 10)).ReadAll()
	if err == nil && len(result[0].Rows) == 0 {
		conn.CustomData()[pooled] = true
	}
	return err
}

// Isolation says in a few words at which level transactions of the pool run. The error says that the login's
// default is another than READ COMMITTED and cannot be set by the dispatcher, and what to do.
func Isolation(ctx context.Context, pool *pgxpool.Pool) (string, error) {
	var effective, standard, user string
	err := pool.QueryRow(ctx, `select setting, reset_val, current_user from pg_settings where name = 'default_transaction_isolation'`).
		Scan(&effective, &standard, &user)
	switch {
	case err != nil:
		return "", fmt.Errorf("read the default isolation level: %w", err)
	case effective != isolation:
		return "", fmt.Errorf("transactions of %s run at %s behind the connection pooler, where claims that meet each other must be tried again; run: alter role %s set default_transaction_isolation = 'read committed'",
			user, effective, pgx.Identifier{user}.Sanitize())
	case standard != isolation:
		return fmt.Sprintf("%s, set by the dispatcher: the default of %s is %s", isolation, user, standard), nil
	}
	return isolation, nil
}
