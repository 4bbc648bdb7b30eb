package producer_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/dispatcher/client/producer"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// listener returns the payloads of the notifications on a channel.
func listener(t *testing.T, dsn, channel string) <-chan string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	check(t, err)
	_, err = conn.Exec(t.Context(), "listen "+pgx.Identifier{channel}.Sanitize())
	check(t, err)
	heard := make(chan string, 100_000)
	ended := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer close(ended)
		for {
			n, err := conn.WaitForNotification(ctx)
			if err != nil {
				return
			}
			heard <- n.Payload
		}
	}()
	t.Cleanup(func() { cancel(); <-ended; conn.Close(context.Background()) })
	return heard
}

func next(t *testing.T, heard <-chan string) string {
	t.Helper()
	select {
	case payload := <-heard:
		return payload
	case <-time.After(need.Wait):
		t.Fatal("no notification came")
		return ""
	}
}

// A wake-up names the namespace on the channel of the schema, with each driver.
func TestWakerNotifiesTheSchemasChannel(t *testing.T) {
	t.Parallel()
	dsn := pgtest.Empty(t)
	db, err := sql.Open("pgx", dsn)
	check(t, err)
	t.Cleanup(func() { check(t, db.Close()) })
	for name, build := range map[string]func(producer.WakerOptions) *producer.Waker{
		"pgx": func(o producer.WakerOptions) *producer.Waker {
			return producer.NewWaker(pgtest.Pool(t, dsn), o)
		},
		"database/sql": func(o producer.WakerOptions) *producer.Waker { return producer.NewSQLWaker(db, o) },
	} {
		for channel, options := range map[string]producer.WakerOptions{"outbox": {}, "Our Outbox": {Schema: "Our Outbox"}} {
			options.OnError = func(err error) { t.Errorf("%s: %v", name, err) }
			heard := listener(t, dsn, channel)
			waker := build(options)
			for _, namespace := range []string{"shop", `it's "quoted"`, "shop"} {
				waker.Wake(namespace)
				got := next(t, heard)
				need.That(t, got == namespace, "%s: heard %q on %q, want %q", name, got, channel, namespace)
			}
		}
	}
}

// However often it is called, a waker notifies on average at most once a millisecond for each namespace, and
// always after the last call.
func TestWakerIsRateLimited(t *testing.T) {
	t.Parallel()
	dsn := pgtest.Empty(t)
	heard := listener(t, dsn, "outbox")
	waker := producer.NewWaker(pgtest.Pool(t, dsn), producer.WakerOptions{OnError: func(err error) { t.Error(err) }})
	const calls = 200_000
	began := time.Now()
	for range calls {
		waker.Wake("shop")
	}
	took := time.Since(began)
	n := 0
	for _, last := range []string{"the last one", "one after all"} { // the first may come before a "shop"
		waker.Wake(last)
		for next(t, heard) != last {
			n++
		}
	}
	// A rest begins before its notification is sent, so that it may be one more than there are rests;
	// the first two come at once, and the last may come after the calls.
	most := int(took/time.Millisecond) + 4
	need.That(t, n >= 1 && n <= most, "%d calls in %v made %d notifications, want 1 to %d", calls, took, n, most)
}

// An unreachable database does not fail the caller: Wake returns, the errors are reported, and the next
// wake-up waits. It works again afterwards.
func TestWakerWithoutDatabase(t *testing.T) {
	t.Parallel()
	srv := pgtest.Server(t)
	pool := pgtest.Open(t, srv.DSN("postgres"))
	failures := make(chan error, 1000)
	waker := producer.NewWaker(pool, producer.WakerOptions{OnError: func(err error) { failures <- err }})
	srv.Kill()
	began := time.Now()
	waker.Wake("shop")
	select {
	case err := <-failures:
		t.Log(err)
	case <-time.After(need.Wait):
		t.Fatal("the failure was not reported")
	}
	for range 100_000 {
		waker.Wake("shop")
	}
	n, most := len(failures), int(time.Since(began)/time.Second)+1
	need.That(t, n <= most, "%d more failures were reported, want at most %d: one a second", n, most)
	check(t, srv.Restart(t.Context()))
	heard := listener(t, srv.DSN("postgres"), "outbox")
	for notified := false; !notified; {
		waker.Wake("shop")
		select {
		case payload := <-heard:
			notified = payload == "shop"
		case err := <-failures: // until the pool has replaced its connections
			t.Log(err)
		}
	}
}
