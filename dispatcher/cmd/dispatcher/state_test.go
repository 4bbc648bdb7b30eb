package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// mounted is a directory as the kubelet mounts a Secret or a ConfigMap: each file is a symbolic link into
// ..data, which is one itself, and is replaced as a whole.
type mounted string

// set replaces all files, as the kubelet does.
func (m mounted) set(t testing.TB, files map[string]string) {
	t.Helper()
	dir, err := os.MkdirTemp(string(m), "..v")
	check(t, err)
	for name, content := range files {
		check(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
		if _, err := os.Lstat(m.file(name)); err != nil {
			check(t, os.Symlink(filepath.Join("..data", name), m.file(name)))
		}
	}
	next := m.file("..data_tmp")
	check(t, os.Symlink(filepath.Base(dir), next))
	check(t, os.Rename(next, m.file("..data")))
}

func (m mounted) file(name string) string { return filepath.Join(string(m), name) }

// A pause reaches a running process: events that have not begun are returned, deliveries in flight are finished, and the
// process still responds. CONTRACT: C-105
func TestStateFilePausesARunningProcess(t *testing.T) {
	t.Parallel()
	o := installed(t)
	arrived, release := make(chan struct{}, 100), make(chan struct{}, 100)
	consumer := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		arrived <- struct{}{}
		<-release
	}))
	defer consumer.Close()
	defer close(release)
	m := mounted(t.TempDir())
	say := func(state string) { m.set(t, map[string]string{"state": state}) }
	yaml := dispatching("{http: {url: '"+consumer.URL+"'}}") + "delivery: {concurrency: 2}\nstateFile: " + m.file("state") + "\n"

	// At the start.
	say("Paused\n")
	o.enqueue(t, 20)
	run(t, "", "once", "-f", o.file(t, o.dispatcher, yaml)).ended(t, 1, "the dispatcher is paused")
	run(t, "", "check", "-f", o.file(t, o.dispatcher, yaml)).ended(t, 0, "ok   state: Paused")
	p := start(t, o.file(t, o.dispatcher, yaml))
	p.ready(t)
	await(t, "the backlog is counted", func() bool { b := p.status(t).Backlog; return b != nil && b.Pending == 20 })
	shows := func(state string, unusable, paused string) bool {
		_, metrics := p.get(t, "/metrics")
		labels := `{dispatcher="orders",outbox_namespace="shop",sink="http"} `
		return p.status(t).State == state && strings.Contains(metrics, "outbox_paused"+labels+paused) &&
			strings.Contains(metrics, "outbox_unusable_files"+labels+unusable)
	}
	if !shows("Paused", "0", "1") {
		t.Errorf("it does not say that it is paused: %+v", p.status(t))
	}
	await(t, "other dispatchers can see that it claims nothing", func() bool {
		return pgtest.Value[int](o.admin, "select count(*) from outbox.outbox_workers where paused") == 1
	})

	say("Running")
	<-arrived
	<-arrived
	await(t, "all in flight", func() bool { return p.status(t).InFlight.Rows == 20 })
	if !shows("Running", "0", "0") {
		t.Errorf("it does not say that it runs: %+v", p.status(t))
	}
	say("Paused")
	await(t, "what has not begun is given back", func() bool {
		return o.count(t, "status = 'pending' and attempts = 0 and locked_by is null") == 18
	})
	release <- struct{}{}
	release <- struct{}{}
	await(t, "what is in flight is finished", func() bool { return o.count(t, "status = 'delivered' and attempts = 1") == 2 })
	p.ready(t)

	// What cannot be used changes nothing.
	say("Stopped")
	problem := func(text string) func() bool {
		return func() bool {
			files := p.status(t).FileProblems
			return len(files) == 1 && files[0].Field == "stateFile" && strings.Contains(files[0].Message, text)
		}
	}
	await(t, "the unknown word is reported", problem("says neither Running nor Paused; write one of them into it"))
	m.set(t, nil)
	await(t, "the missing file is reported", problem("no such file or directory"))
	if !shows("Paused", "1", "1") || len(arrived) != 0 {
		t.Errorf("%d deliveries while its file is missing: %+v", len(arrived), p.status(t))
	}
	run(t, "", "check", "-f", o.file(t, o.dispatcher, yaml)).ended(t, 1, "FAIL state: stateFile: ")

	say("Running")
	for range 18 {
		release <- struct{}{}
	}
	await(t, "all is delivered", func() bool { return o.count(t, "status = 'delivered' and attempts = 1") == 20 })
	if !shows("Running", "0", "0") || p.status(t).FileProblems != nil {
		t.Errorf("at the end: %+v", p.status(t))
	}
	if code := p.stop(t); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
}

// A changed schema file applies from the next event. One that does not compile keeps the schema before it, and is
// reported with line and column. CONTRACT: C-72
func TestSchemaFileAppliesWithoutARestart(t *testing.T) {
	t.Parallel()
	o := installed(t)
	m := mounted(t.TempDir())
	m.set(t, map[string]string{"order.json": `{"properties": {"card": {"type": "string"}}}`})
	yaml := dispatching("{log: {}}") + "message: {validation: [{schema: {file: " + m.file("order.json") + "}}]}\n"
	p := start(t, o.file(t, o.dispatcher, yaml))
	o.enqueue(t, 1)
	await(t, "the event is delivered", func() bool { return o.count(t, "status = 'delivered'") == 1 })

	m.set(t, map[string]string{"order.json": "{\"properties\": {\"card\":\n {\"type\": \"objekt\"}}}"})
	await(t, "line and column are reported", func() bool {
		files := p.status(t).FileProblems
		return len(files) == 1 && files[0].Field == "message.validation[0].schema.file" && strings.Contains(files[0].Message, "it is not a JSON Schema: line 2, column 11: at /properties/card/type: ")
	})
	await(t, "it is logged", func() bool { return strings.Contains(p.log.String(), "line 2, column 11: at /properties/card/type: ") })
	o.enqueue(t, 1)
	await(t, "the event is delivered", func() bool { return o.count(t, "status = 'delivered'") == 2 })

	m.set(t, map[string]string{"order.json": `{"properties": {"card": {"type": "number"}}}`})
	await(t, "it is used again", func() bool { return p.status(t).FileProblems == nil })
	o.enqueue(t, 1)
	await(t, "the event is dead", func() bool { return o.count(t, "status = 'dead' and dead_reason = 'schema_validation_failed'") == 1 })
	p.ready(t)
}
