package postgres_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/hack/servers/postgres"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

func start(t *testing.T, opts postgres.Options) *postgres.Server {
	t.Helper()
	srv, err := postgres.Start(t.Context(), opts)
	need.OK(t, err)
	t.Cleanup(func() {
		if err := srv.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return srv
}

// query runs SQL on a connection of its own and returns the one value, or the error.
func query(t *testing.T, srv *postgres.Server, sql string) (value string, err error) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), srv.DSN("postgres"))
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, conn.Close(context.Background())) }()
	err = conn.QueryRow(t.Context(), sql).Scan(&value)
	return value, err
}

func want(t *testing.T, srv *postgres.Server, sql, value string) {
	t.Helper()
	if got, err := query(t, srv, sql); err != nil || got != value {
		t.Errorf("%s is %q, %v, want %q", sql, got, err, value)
	}
}

// A server does not outlive the process that started it, however that ends.
func TestServerEndsWithItsParent(t *testing.T) {
	if os.Getenv("OUTBOX_TEST_PARENT") != "" {
		srv := start(t, postgres.Options{})
		fmt.Println("DSN", srv.DSN("postgres"))
		select {} // until it is killed
	}
	if runtime.GOOS != "linux" {
		t.Skip("only Linux signals a child when its parent ends")
	}
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestServerEndsWithItsParent$")
	cmd.Env = append(os.Environ(), "OUTBOX_TEST_PARENT=1")
	out, err := cmd.StdoutPipe()
	need.OK(t, err)
	need.OK(t, cmd.Start())
	var dsn string
	for lines := bufio.NewScanner(out); dsn == "" && lines.Scan(); {
		dsn, _ = strings.CutPrefix(lines.Text(), "DSN ")
	}
	conn, err := pgx.Connect(t.Context(), dsn)
	need.OK(t, err)
	var dir string
	need.OK(t, conn.QueryRow(t.Context(), `show data_directory`).Scan(&dir))

	need.OK(t, cmd.Process.Kill())
	_ = cmd.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), need.Wait)
	defer cancel()
	// The server closes the connection when it ends.
	if _, err := conn.WaitForNotification(ctx); err == nil || ctx.Err() != nil {
		t.Errorf("a minute after its parent was killed the server still runs: %v", err)
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for gone := false; !gone && ctx.Err() == nil; <-tick.C {
		_, err := os.Stat(filepath.Join(dir, "postmaster.pid"))
		gone = os.IsNotExist(err)
	}
	start(t, postgres.Options{})
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("what it left in %s is not removed by the next server: %v", dir, err)
	}
}

// The environment chooses another PostgreSQL than the machine's: a major whose build is fetched, or a
// directory of binaries.
func TestVariableChoosesTheMajor(t *testing.T) {
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		t.Skip("builds of all majors are for Linux on amd64")
	}
	majors := postgres.Majors()
	need.That(t, len(majors) == 5 && majors[0] == "14" && majors[4] == "18", "there are builds of %v, want those of 14 to 18", majors)
	bin, err := postgres.Build(t.Context(), majors[0])
	need.OK(t, err)
	for _, value := range []string{majors[0], bin} {
		t.Setenv(postgres.Variable, value)
		want(t, start(t, postgres.Options{}), `select (current_setting('server_version_num')::integer / 10000)::text`, majors[0])
	}
	t.Setenv(postgres.Variable, "13")
	need.Fails(t, `OUTBOX_TEST_PG is "13"`, "a major without a build: error is %v, want one that names the variable", need.Err(postgres.Start(t.Context(), postgres.Options{})))
}
