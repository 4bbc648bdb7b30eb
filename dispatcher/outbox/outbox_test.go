package outbox_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/metrics"
	"github.com/outbox-operator/outbox-operator/dispatcher/outbox"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// embedded is the connection string of a process that is the example's service.
const embedded = "OUTBOX_TEST_EMBEDDED"

func TestMain(m *testing.M) {
	if dsn := os.Getenv(embedded); dsn != "" {
		if err := service(context.Background(), dsn); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	pgtest.Main(m)
}

// service runs the example, says where it listens, and notes each event and when it came.
func service(ctx context.Context, dsn string) error {
	pool, err := pgxpool.New(ctx, dsn)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	return serve(ctx, pool, listener, func(ctx context.Context, _ *dispatcher.Event) error {
		_, err := pool.Exec(ctx, "insert into handled (pid, at) values ($1, clock_timestamp())", os.Getpid())
		return err
	})
}

// Two processes of the example deliver each event once, 100 in a second together, remove the rows after their retention, and
// export the metrics of the page.
//
// CONTRACT: C-36, C-60, C-95
func TestEmbeddedDispatcherIsWhole(t *testing.T) {
	t.Parallel()
	dsn := pgtest.Migrated(t)
	db := pgtest.Open(t, dsn)
	pgtest.Exec(db, "create table handled (pid int, at timestamptz)")
	addresses := []string{start(t, dsn), start(t, dsn)}
	parts := func() int {
		return pgtest.Value[int](db, "select count(*) from outbox.outbox_workers where part > 0.4")
	}
	pgtest.Eventually(t, "each process has its part of the rate", func() bool { return parts() == 2 })

	const events = 400
	pgtest.Exec(db, fmt.Sprintf("select outbox.enqueue('shop', 'orders', '{}') from generate_series(1, %d)", events))
	pgtest.Eventually(t, "all events are delivered", func() bool { return pgtest.Value[int](db, "select count(*) from handled") >= events })
	pgtest.Want(db, 2, "%d processes delivered, want both", "select count(distinct pid) from handled")
	// At 100 a second they take 4 s, at twice that 2 s. What each has at its start may go at once.
	if took := pgtest.Value[float64](db, "select extract(epoch from max(at) - min(at))::float8 from handled"); took < 3 {
		t.Errorf("%d events took %.1f s, want 3 at least", events, took)
	}
	pgtest.Eventually(t, "delivered rows are removed", func() bool {
		pgtest.Exec(db, "update outbox.outbox_sweeps set next_run = now()")
		return pgtest.Value[int](db, "select count(*) from outbox.outbox_events") == 0
	})

	page, err := os.ReadFile("../internal/metrics/README.md")
	need.OK(t, err)
	exported := get(t, "http://"+addresses[0]+"/metrics")
	names := regexp.MustCompile("(?m)^\\| `(outbox_\\w+)` \\|").FindAllStringSubmatch(string(page), -1)
	need.Must(t, len(names) >= 30, "the page has %d metrics", len(names))
	for _, name := range names {
		if !strings.Contains(exported, "# TYPE "+name[1]+" ") && !others.MatchString(name[1]) {
			t.Errorf("%s is not exported", name[1])
		}
	}
}

// others are metrics that the example has no use for: adoptions, Auto, the journal, notifications, and a paused topic.
var others = regexp.MustCompile("_(adoption|concurrency|journal|dlq_notifications|topic_breaker)_")

// start starts the example in a process of its own, and returns where it listens.
func start(t *testing.T, dsn string) (address string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), embedded+"="+dsn)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	need.OK(t, err)
	need.OK(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	need.OK(t, need.Err(fmt.Fscanln(out, &address)))
	return address
}

func get(t *testing.T, url string) string {
	t.Helper()
	response, err := http.Get(url)
	need.OK(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	need.OK(t, err)
	return string(text)
}

// An observer of the caller would be called for nothing: New refuses it.
func TestNewRefusesAnObserver(t *testing.T) {
	cfg := outbox.Config{Config: dispatcher.Config{Observer: metrics.New(prometheus.NewRegistry(), "a", "b", "c")}}
	need.Fails(t, "Registerer", "%v, want that Registerer is named", need.Err(outbox.New(nil, dispatcher.Handlers{}, cfg)))
}
