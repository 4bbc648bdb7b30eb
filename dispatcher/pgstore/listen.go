package pgstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

const (
	// listenTimeout bounds each statement of a listener, and the wait for its own notification.
	listenTimeout = 5 * time.Second
	// checkEvery is how long a listener receives nothing before it checks whether its session still listens.
	checkEvery = 30 * time.Second
)

// errDeaf is for a connection that lives on without its LISTEN, as where a proxy has reconnected to the server.
var errDeaf = errors.New("the server's session no longer listens: a proxy between here and the server may have made another one")

// errPooled says why nothing would be heard.
var errPooled = errors.New("a pooler between here and the server, such as PgBouncer in transaction mode, keeps notifications back; " +
	"let the dispatcher connect to the server itself or to a pool in session mode, or set wakeUp to None")

// Listen calls wake for each wake-up that a producer sends for the namespace (package producer, Waker),
// until ctx ends. wake must not block: pass the Wake of an engine's Dispatcher.
//
// A wake-up is a notification on the channel with the name of the schema, and its payload is the
// namespace. Listen holds one connection of its own from connect, makes a new one after growing waits
// when it is lost, and calls wake then, for what was missed. Wake-ups are a hint: without them, the
// dispatcher polls. It logs, once for each change, whether they are received.
//
// LISTEN belongs to a session, so the connection must not go through PgBouncer in transaction mode.
// Listen notices when it does, and says so.
func Listen(ctx context.Context, connect func(context.Context) (*pgx.Conn, error), schema, namespace string, wake func(), log *slog.Logger) {
	l := listener{connect, schema, namespace, wake, log, checkEvery}
	l.run(ctx)
}

// run is Listen.
func (l *listener) run(ctx context.Context) {
	waits := dispatcher.ExponentialBackoff(250*time.Millisecond, time.Minute)
	for failures := 0; ctx.Err() == nil; {
		heard, err := l.listen(ctx)
		if heard {
			failures = 0
		}
		if failures++; failures == 1 && ctx.Err() == nil {
			l.log.Warn("wake-ups of producers are not received; polling continues", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(waits.Delay(failures, mathrand.Float64)):
		}
	}
}

type listener struct {
	connect           func(context.Context) (*pgx.Conn, error)
	schema, namespace string
	wake              func()
	log               *slog.Logger
	silence           time.Duration // before it checks
}

// listen hears wake-ups until the connection fails or ctx ends. heard is true if it could begin to.
func (l *listener) listen(ctx context.Context) (heard bool, err error) {
	conn, err := l.connect(ctx)
	if err != nil {
		return false, err
	}
	defer hangUp(conn)
	if err := l.subscribe(ctx, conn); err != nil {
		return false, err
	}
	l.log.Info("wake-ups of producers are received", "channel", l.schema)
	l.wake()
	for {
		payload, err := await(ctx, conn, l.silence)
		if ctx.Err() == nil && pgconn.Timeout(err) {
			err = l.listens(ctx, conn)
		}
		if err != nil {
			return true, err
		}
		if payload == l.namespace {
			l.wake()
		}
	}
}

// listens checks that the session of the connection has its LISTEN.
func (l *listener) listens(ctx context.Context, conn *pgx.Conn) error {
	var listens bool
	err := bounded(ctx, func(ctx context.Context) error {
		return conn.QueryRow(ctx, "select $1 in (select pg_listening_channels())", pgx.QueryExecModeSimpleProtocol, l.schema).Scan(&listens)
	})
	if err == nil && !listens {
		err = errDeaf
	}
	return err
}

// subscribe makes sure that notifications arrive. A server's connection knows its process; one that
// names another has a pooler in between, which may be one in session mode. Then it must hear a
// notification from another session: its own would arrive in any mode.
func (l *listener) subscribe(ctx context.Context, conn *pgx.Conn) error {
	var process uint32
	err := bounded(ctx, func(ctx context.Context) error {
		if _, err := conn.Exec(ctx, "listen "+pgx.Identifier{l.schema}.Sanitize()); err != nil {
			return err
		}
		return conn.QueryRow(ctx, "select pg_backend_pid()", pgx.QueryExecModeSimpleProtocol).Scan(&process)
	})
	if err != nil || process == conn.PgConn().PID() {
		return err
	}
	other, err := l.connect(ctx)
	if err != nil {
		return err
	}
	defer hangUp(other)
	word := rand.Text()
	err = bounded(ctx, func(ctx context.Context) error {
		_, err := other.Exec(ctx, "select pg_notify($1, $2)", pgx.QueryExecModeSimpleProtocol, l.schema, word)
		return err
	})
	for heard := ""; err == nil && heard != word; {
		heard, err = await(ctx, conn, listenTimeout)
	}
	if pgconn.Timeout(err) {
		return errPooled
	}
	return err
}

// await returns the payload of the next notification. A timeout leaves the connection usable.
func await(ctx context.Context, conn *pgx.Conn, limit time.Duration) (payload string, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	n, err := conn.WaitForNotification(ctx)
	if err != nil {
		return "", fmt.Errorf("wait for a notification: %w", err)
	}
	return n.Payload, nil
}

func bounded(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, listenTimeout)
	defer cancel()
	return do(ctx)
}

func hangUp(conn *pgx.Conn) {
	_ = bounded(context.Background(), conn.Close) // it is given up either way
}

// TryListen returns an error that says why [Listen] would receive no wake-up: it cannot connect, may not listen, or a
// pooler is in between.
func TryListen(ctx context.Context, connect func(context.Context) (*pgx.Conn, error), schema string) error {
	conn, err := connect(ctx)
	if err != nil {
		return err
	}
	defer hangUp(conn)
	l := listener{connect: connect, schema: schema}
	return l.subscribe(ctx, conn)
}
