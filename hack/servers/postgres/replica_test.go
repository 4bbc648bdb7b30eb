package postgres_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/hack/servers/postgres"
)

// A standby has what the primary writes. After a switch-over they have changed places.
func TestStandbyFollowsAndSwitchesOver(t *testing.T) {
	t.Parallel()
	first := start(t, postgres.Options{})
	second, err := first.Standby(t.Context(), postgres.Options{Settings: map[string]string{"cluster_name": "second"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := second.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	want(t, second, `select pg_is_in_recovery()::text`, "true")
	write(t, first, `create table kept as select 1 as n`)
	await(t, second, `select (to_regclass('kept') is not null)::text`, "true")
	want(t, first, `select application_name from pg_stat_replication`, "second")

	if err := first.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := second.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	write(t, second, `insert into kept values (2)`)
	if err := first.Follow(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	want(t, first, `select pg_is_in_recovery()::text`, "true")
	await(t, first, `select sum(n)::text from kept`, "3")
}

// write runs SQL that returns nothing.
func write(t *testing.T, srv *postgres.Server, sql string) {
	t.Helper()
	if _, err := query(t, srv, sql); !errors.Is(err, pgx.ErrNoRows) {
		t.Fatalf("%s: %v", sql, err)
	}
}

// await waits until SQL returns a value.
func await(t *testing.T, srv *postgres.Server, sql, value string) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); ; <-tick.C {
		got, err := query(t, srv, sql)
		if err == nil && got == value {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s is %q, %v, and not %q within a minute", sql, got, err, value)
		}
	}
}

// A frozen server does not respond on the connections that it has, until it thaws.
func TestFrozenServerDoesNotRespond(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux lists the children of a process")
	}
	t.Parallel()
	srv := start(t, postgres.Options{})
	conn, err := pgx.Connect(t.Context(), srv.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if err := srv.Freeze(); err != nil {
		t.Fatal(err)
	}
	pinged := make(chan error, 1)
	go func() { pinged <- conn.Ping(t.Context()) }()
	select {
	case err := <-pinged:
		t.Errorf("a frozen server responded: %v", err)
		return
	case <-time.After(100 * time.Millisecond): // time in which it would
	}
	srv.Thaw()
	if err := <-pinged; err != nil {
		t.Errorf("after the thaw: %v", err)
	}
	if err := srv.Freeze(); err != nil {
		t.Fatal(err)
	}
	srv.Kill() // ends it also so
}
