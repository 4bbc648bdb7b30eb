package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	consume "github.com/outbox-operator/outbox-operator/dispatcher/consumer"
	"github.com/outbox-operator/outbox-operator/hack/testing/java"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/node"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/hack/testing/python"
)

// languages run the program of a page.
var languages = map[string]struct {
	heading string
	command func(ctx context.Context, t *testing.T, program string) (*exec.Cmd, error)
	missing error
}{
	"python": {"## Python", func(ctx context.Context, _ *testing.T, program string) (*exec.Cmd, error) {
		return python.Command(ctx, []string{"psycopg[binary]==3.2.10", "SQLAlchemy==2.0.43"}, "-c", program)
	}, python.ErrMissing},
	"typescript": {"## TypeScript", func(ctx context.Context, _ *testing.T, program string) (*exec.Cmd, error) {
		return node.TypeScript(ctx, []string{"pg@8.16.3", "@types/pg@8.15.5"}, program)
	}, node.ErrMissing},
	"java": {"## Java", func(ctx context.Context, t *testing.T, program string) (*exec.Cmd, error) {
		return java.Command(ctx, t.TempDir(), "Billing", program)
	}, java.ErrMissing},
}

// block is the first block of a language below a heading of a page, as it stands there.
func block(t *testing.T, page, heading, language string) string {
	t.Helper()
	text, err := os.ReadFile(page)
	check(t, err)
	_, below, _ := strings.Cut(string(text), "\n"+heading+"\n")
	_, rest, ok := strings.Cut(below, "\n```"+language+"\n")
	program, _, ended := strings.Cut(rest, "\n```\n")
	if !ok || !ended {
		t.Fatalf("%s has no block of %s", page, language)
	}
	return program
}

// foreign is a consumer in another language, behind a proxy that obeys the hooks.
type foreign struct {
	*pgxpool.Pool
	dir, port string
	start     func() *exec.Cmd
	running   *exec.Cmd
	mu        sync.Mutex
	hooks     map[string]string // the state of each
}

// states are what a hook does to the database.
var states = map[string]map[string]string{
	"fail":   {"on": "alter table invoices rename to hidden", "off": "alter table hidden rename to invoices"},
	"record": {"on": "alter table processed_events rename to unseen", "off": "alter table unseen rename to processed_events"},
	"crash": {"on": `create function crash() returns trigger language plpgsql as 'begin perform pg_terminate_backend(pg_backend_pid()); perform pg_sleep(1); return new; end';
		create trigger crash after insert on invoices for each row execute function crash()`, "off": "drop function crash cascade"},
}

// obey does what a hook's command has requested since the last request.
func (f *foreign) obey(ctx context.Context, t *testing.T) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for hook, sql := range states {
		state, _ := os.ReadFile(filepath.Join(f.dir, hook))
		if now := strings.TrimSpace(string(state)); now != "" && now != f.hooks[hook] {
			if _, err := f.Exec(ctx, sql[now]); err != nil {
				t.Errorf("%s %s: %v", hook, now, err)
			}
			f.hooks[hook] = now
		}
	}
	if os.Remove(filepath.Join(f.dir, "restart")) == nil {
		_ = f.running.Process.Kill()
		_ = f.running.Wait() // it was killed
		f.run(t)
	}
}

// run starts the consumer, and waits until it listens.
func (f *foreign) run(t *testing.T) {
	f.running = f.start()
	check(t, f.running.Start())
	pgtest.Eventually(t, "the consumer listens", time.Minute, func() bool {
		conn, err := net.Dial("tcp", "127.0.0.1:"+f.port)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
}

// The consumers in other languages, as they stand on the page, keep all rules: only the fence is not theirs.
//
// CONTRACT: C-81
func TestConsumersOfThePageKeepTheRules(t *testing.T) {
	t.Parallel()
	for name, language := range languages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			program, err := language.command(t.Context(), t, block(t, "../../consumer/languages.md", language.heading, name))
			need.Server(t, err, language.missing)
			free, err := net.Listen("tcp", "127.0.0.1:0")
			check(t, err)
			f := &foreign{Pool: pgtest.Pool(t, pgtest.Empty(t)), dir: t.TempDir(), port: strconv.Itoa(free.Addr().(*net.TCPAddr).Port), hooks: map[string]string{}}
			check(t, free.Close())
			schema, err := os.ReadFile("../../consumer/sql/schema.sql")
			check(t, err)
			if string(schema) != consume.SQL("") {
				t.Error("consumer.SQL is not the file")
			}
			_, err = f.Exec(t.Context(), string(schema)+"create table invoices (tracking_id uuid, cents int not null, currency text not null)")
			check(t, err)
			dsn := f.Config().ConnString()
			f.start = func() *exec.Cmd {
				cmd := exec.CommandContext(t.Context(), program.Path, program.Args[1:]...)
				cmd.Env = append(slices.Clip(program.Env), "PORT="+f.port, "DATABASE_URL="+dsn, "JDBC_URL="+jdbc(t, f.Pool))
				cmd.Stderr, cmd.WaitDelay = t.Output(), time.Second
				return cmd
			}
			f.run(t)
			t.Cleanup(func() { _ = f.running.Process.Kill(); _ = f.running.Wait() })
			to, err := url.Parse("http://127.0.0.1:" + f.port)
			check(t, err)
			proxy := httputil.NewSingleHostReverseProxy(to)
			front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				f.obey(context.WithoutCancel(r.Context()), t)
				if r.Method == http.MethodPost {
					proxy.ServeHTTP(w, r)
					return
				}
				var n int
				if err := f.QueryRow(r.Context(), "select count(*) from invoices where tracking_id = $1", r.FormValue("id")).Scan(&n); err != nil {
					http.Error(w, err.Error(), http.StatusInternalServerError)
				}
				fmt.Fprint(w, n)
			}))
			t.Cleanup(front.Close)
			payload := filepath.Join(f.dir, "order.json")
			check(t, os.WriteFile(payload, []byte(`{"cents": 4200, "currency": "EUR"}`), 0o600))
			args := []string{"verify-consumer", "--url", front.URL + "/events", "--type", "OrderPlaced", "--payload", payload, "--optional", "currency",
				"--probe", front.URL + "?id={id}", "--restart", "touch " + filepath.Join(f.dir, "restart")}
			for flag, hook := range map[string]string{"--fail": "fail", "--fail-record": "record", "--crash": "crash"} {
				args = append(args, flag, "echo {state} > "+filepath.Join(f.dir, hook))
			}
			run(t, "", args...).ok(t, "of 19 checks 18 passed, 0 passed partly, 0 found a rule broken, 1 were not run\n",
				"RULE-010-003  the fence                        NotRun  optional; set --probe-token-member")
		})
	}
}

// jdbc is the URL of a pool's database for Java.
func jdbc(t *testing.T, pool *pgxpool.Pool) string {
	t.Helper()
	c := pool.Config().ConnConfig
	return fmt.Sprintf("jdbc:postgresql://%s:%d/%s?user=%s&password=%s", c.Host, c.Port, c.Database, c.User, url.QueryEscape(c.Password))
}
