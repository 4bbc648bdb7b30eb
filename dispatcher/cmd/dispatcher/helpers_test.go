package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/objects"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations"
)

// asDispatcher turns this test binary into the dispatcher: the tests run it as a process.
const asDispatcher = "RUN_AS_DISPATCHER"

func TestMain(m *testing.M) {
	if os.Getenv(asDispatcher) != "" {
		main()
	}
	pgtest.Settings = map[string]string{"wal_level": "logical", "max_wal_senders": "10"} // for what a connector reads
	pgtest.Main(m)
}

// secret is in every password, and in the payloads of some tests. No output may show it.
const secret = "s3cr3t"

// basic is how the login of the tests looks in a header of HTTP.
var basic = base64.StdEncoding.EncodeToString([]byte("user-" + secret + ":password-" + secret))

func check(t testing.TB, err error) {
	t.Helper()
	need.OK(t, err)
}

func command(t testing.TB, args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), asDispatcher+"=1", "TERMINATION_LOG="+filepath.Join(t.TempDir(), "none"))
	return cmd
}

// output is what a command left behind.
type output struct {
	out, err string
	code     int
}

// run runs a command to its end. CONTRACT: C-73
func run(t testing.TB, stdin string, args ...string) output {
	t.Helper()
	return finish(t, command(t, args...), stdin)
}

func finish(t testing.TB, cmd *exec.Cmd, stdin string) output {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	noSecret(t, out.String()+errs.String())
	return output{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

func noSecret(t testing.TB, text string) {
	t.Helper()
	need.That(t, !strings.Contains(text, secret) && !strings.Contains(text, basic) && !strings.Contains(text, "@127.0.0.1"), "a secret or a connection string was shown:\n%s", text)
}

// ok fails the test unless the command succeeded and printed what is wanted.
func (o output) ok(t testing.TB, want ...string) {
	t.Helper()
	o.ended(t, 0, want...)
}

// ended fails the test unless the command ended with the code and printed what is wanted.
func (o output) ended(t testing.TB, code int, want ...string) {
	t.Helper()
	for _, w := range want {
		need.That(t, strings.Contains(o.out+o.err, w), "it did not print %q", w)
	}
	need.Want(t, code, "exit code %d, want %d", o.code)
	need.Must(t, !t.Failed(), "standard output:\n%s\nstandard error:\n%s", o.out, o.err)
}

// outbox is a database with the three logins of a real installation, and their files.
type outbox struct {
	admin                       pgtest.DB
	dsn                         *url.URL
	dir                         string
	owner, dispatcher, producer string // roles
}

// newOutbox makes the logins in an empty database; superuser is its connection string.
func newOutbox(t testing.TB, superuser string) *outbox {
	t.Helper()
	u, err := url.Parse(superuser)
	check(t, err)
	database := strings.TrimPrefix(u.Path, "/")
	o := &outbox{
		admin: pgtest.Open(t, superuser), dsn: u, dir: t.TempDir(),
		owner: database + "_owner", dispatcher: database + "_dispatcher", producer: database + "_producer",
	}
	for _, role := range []string{o.owner, o.dispatcher, o.producer} {
		o.exec(t, fmt.Sprintf("create role %s login password '%s'", role, secret))
		o.login(t, role, secret)
		pgtest.DropRole(t, o.admin.Pool, role)
	}
	o.exec(t, fmt.Sprintf("grant create on database %s to %s", database, o.owner))
	return o
}

// login writes the Secret with the role's connection string.
func (o *outbox) login(t testing.TB, role, password string) {
	t.Helper()
	u := *o.dsn
	u.User = url.UserPassword(role, password)
	check(t, objects.Secret(o.dir, secretOf(role), "dsn", u.String()))
}

func (o *outbox) exec(t testing.TB, sql string) {
	t.Helper()
	pgtest.Exec(o.admin, sql)
}

func (o *outbox) count(t testing.TB, where string) (n int) {
	t.Helper()
	check(t, o.admin.QueryRow(t.Context(), "select count(*) from outbox.outbox_events where "+where).Scan(&n))
	return n
}

// text is the only value of a query, empty for null.
func (o *outbox) text(t testing.TB, query string) string {
	t.Helper()
	var text *string
	check(t, o.admin.QueryRow(t.Context(), query).Scan(&text))
	if text == nil {
		return ""
	}
	return *text
}

// installed is an outbox with the schema and the grants, as the commands of migrated leave them: a copy of a database that
// this process has migrated once.
func installed(t testing.TB) *outbox {
	t.Helper()
	o := newOutbox(t, pgtest.Migrated(t))
	o.exec(t, strings.ReplaceAll(`do $$ declare command text; begin
		for command in
			select 'alter schema outbox owner to OWNER'
			union all select format('alter table %s owner to OWNER', oid::regclass) from pg_class as c where relnamespace = 'outbox'::regnamespace
				and (relkind in ('r', 'p') or relkind = 'S' and not exists (select from pg_depend where objid = c.oid and deptype in ('a', 'i'))) -- those follow their table
			union all select format('alter routine %s owner to OWNER', oid::regprocedure) from pg_proc where pronamespace = 'outbox'::regnamespace
		loop
			execute command;
		end loop;
	end $$`, "OWNER", o.owner))
	for role, kind := range map[string]migrations.Kind{o.dispatcher: migrations.Dispatcher, o.producer: migrations.Producer} {
		for _, sql := range migrations.Grants(pgtest.Schema, role, kind) {
			o.exec(t, sql)
		}
	}
	return o
}

// migrated also has the schema and the grants.
func (o *outbox) migrated(t testing.TB) *outbox {
	t.Helper()
	run(t, "", "migrate", "up", "-f", o.file(t, o.owner, ""), "--grant-to-login-of", o.file(t, o.dispatcher, "")).ok(t)
	run(t, "", "migrate", "grants", "--role", o.producer, "--for", "producer", "--require-data=false", "--apply", "-f", o.file(t, o.owner, "")).ok(t)
	return o
}

// file writes the objects of a role; more is the YAML of the OutboxDispatcher's spec, with its name, and with what belongs to
// the Outbox. Without a sink it has the Outbox alone.
func (o *outbox) file(t testing.TB, role, more string) string {
	t.Helper()
	login := map[string]any{"name": secretOf(role)}
	outbox := map[string]any{"secretRef": login}
	var dispatcher map[string]any
	check(t, yaml.Unmarshal([]byte(more), &dispatcher))
	for _, section := range []string{"journal", "migration", "notify", "replayLogin", "retention"} {
		if dispatcher[section] != nil {
			outbox[section] = dispatcher[section]
			delete(dispatcher, section)
		}
	}
	if outbox["journal"] != nil {
		outbox["migration"] = map[string]any{"policy": "Job", "secretRef": login}
	}
	name, named := dispatcher["name"].(string)
	if !named {
		name = "orders"
	}
	delete(dispatcher, "name")
	if dispatcher["sink"] == nil {
		dispatcher = nil
	}
	dir := t.TempDir()
	check(t, os.Symlink(filepath.Join(o.dir, "secrets"), filepath.Join(dir, "secrets")))
	path := filepath.Join(dir, "orders.yaml")
	check(t, objects.Write(path, name, dispatcher, outbox))
	return path
}

// secretOf is the name of the Secret with a role's login.
func secretOf(role string) string { return strings.ReplaceAll(role, "_", "-") }

// dsnOf is the connection string of a role.
func (o *outbox) dsnOf(t testing.TB, role string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(o.dir, "secrets", secretOf(role), "dsn"))
	check(t, err)
	return string(text)
}

// mount has a folder as the Secret or ConfigMap of a name.
func (o *outbox) mount(t testing.TB, name, dir string) {
	t.Helper()
	check(t, os.Symlink(dir, filepath.Join(o.dir, "secrets", name)))
}

// shop is the YAML of an OutboxDispatcher for commands that need its namespace alone.
const shop = "namespace: shop\nsink: {log: {}}\n"

// dispatching is the YAML of an OutboxDispatcher with a sink.
func dispatching(sink string) string { return "namespace: shop\nsink: " + sink + "\n" }

// enqueue adds events whose payloads hold the secret.
func (o *outbox) enqueue(t testing.TB, n int) {
	t.Helper()
	line := fmt.Sprintf(`{"namespace": "shop", "topic": "orders", "payload": {"card": %q}}`+"\n", secret)
	run(t, strings.Repeat(line, n), "enqueue", "-f", o.file(t, o.producer, "")).ok(t)
}

// process is a dispatcher that runs.
type process struct {
	cmd     *exec.Cmd
	address string
	log     *log
	done    chan struct{}
}

// log collects what a process prints.
type log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// address waits for the line that says where the process listens.
func (l *log) address(t testing.TB) (address string) {
	t.Helper()
	await(t, "it says where it listens", func() bool {
		for line := range strings.Lines(l.String()) {
			var said struct{ Msg, Address string }
			if json.Unmarshal([]byte(line), &said) == nil && said.Msg == "starting" { // else half a line
				address = said.Address
				return true
			}
		}
		return false
	})
	return address
}

func start(t testing.TB, file string, env ...string) *process {
	t.Helper()
	return launch(t, command(t, "run", "-f", file, "--listen", "127.0.0.1:0"), env...)
}

// launch starts a command that is a run.
func launch(t testing.TB, cmd *exec.Cmd, env ...string) *process {
	t.Helper()
	p := &process{cmd: cmd, log: &log{}, done: make(chan struct{})}
	p.cmd.Env = append(p.cmd.Env, env...)
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	check(t, p.cmd.Start())
	go func() { _ = p.cmd.Wait(); close(p.done) }() // its exit code is read by stop
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // unless it has ended
		<-p.done
		noSecret(t, p.log.String())
		if t.Failed() {
			t.Logf("the dispatcher's log:\n%s", p.log)
		}
	})
	p.address = p.log.address(t)
	return p
}

// stop ends the process in order, and returns its exit code.
func (p *process) stop(t testing.TB) int {
	t.Helper()
	check(t, p.cmd.Process.Signal(syscall.SIGTERM))
	select {
	case <-p.done:
	case <-time.After(need.Wait):
		t.Fatal("it did not stop")
	}
	return p.cmd.ProcessState.ExitCode()
}

// get sends a request to the process; the code is 0 without a response.
func (p *process) get(t testing.TB, path string) (int, string) {
	t.Helper()
	resp, err := http.Get("http://" + p.address + path)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	noSecret(t, string(body))
	return resp.StatusCode, string(body)
}

func (p *process) status(t testing.TB) (s status.Status) {
	t.Helper()
	_, body := p.get(t, status.Path)
	_ = json.Unmarshal([]byte(body), &s) // empty without a response
	return s
}

// await polls until the condition holds.
func await(t testing.TB, what string, condition func() bool) {
	t.Helper()
	pgtest.Eventually(t, what, condition)
}

// ready waits for /readyz to say ok.
func (p *process) ready(t testing.TB) {
	t.Helper()
	await(t, "ready", func() bool { code, _ := p.get(t, "/readyz"); return code == http.StatusOK })
}

// unready waits for /readyz to name a cause. The process lives on all the while.
func (p *process) unready(t testing.TB, cause string) {
	t.Helper()
	await(t, "not ready, with "+cause, func() bool {
		code, body := p.get(t, "/readyz")
		return code == http.StatusServiceUnavailable && strings.Contains(body, cause)
	})
	if code, body := p.get(t, "/healthz"); code != http.StatusOK {
		t.Errorf("/healthz says %d %s: a restart would not help", code, body)
	}
}
