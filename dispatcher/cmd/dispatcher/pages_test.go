package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// part is a block of a page, under a comment with its name.
func part(t *testing.T, page, name string) string {
	t.Helper()
	text, err := os.ReadFile(page)
	check(t, err)
	found := regexp.MustCompile("(?s)<!-- " + regexp.QuoteMeta(name) + " -->\n```[a-z]+\n(.*?)```").FindSubmatch(text)
	if found == nil {
		t.Fatalf("%s has no %q", page, name)
	}
	return string(found[1])
}

// Five minutes without Kubernetes, from the pages alone: the logins, the schema, a check, the producer's rights, and an event
// of each function that arrives.
func TestFiveMinutes(t *testing.T) {
	t.Parallel()
	const front, page = "../../../README.md", "../../README.md"
	o := newOutbox(t, pgtest.Empty(t)) // its logins are another's
	database := strings.TrimPrefix(o.dsn.Path, "/")
	name := map[string]string{"outbox_owner": database + "_1", "outbox_dispatcher": database + "_2", "app": database + "_3"}
	logins := strings.NewReplacer("outbox_owner", name["outbox_owner"], "outbox_dispatcher", name["outbox_dispatcher"], "database shop", "database "+database, "…", secret)
	o.exec(t, logins.Replace(part(t, front, "logins"))+fmt.Sprintf("create role %s login password '%s'", name["app"], secret))
	files := map[string]string{"/etc/outbox/dsn": name["outbox_dispatcher"], "/etc/outbox/owner-dsn": name["outbox_owner"]}
	for _, role := range name {
		pgtest.DropRole(t, o.admin.Pool, role)
	}
	file := func(name, text string) string {
		for path, role := range files {
			o.login(t, role, secret)
			text = strings.ReplaceAll(text, "dsnFile: "+path+"}", "dsnFile: "+filepath.Join(o.dir, role)+"}")
		}
		path := filepath.Join(o.dir, name)
		check(t, os.WriteFile(path, []byte(regexp.MustCompile("(?m)^sink: .*$").ReplaceAllString(text, "sink: {log: {}}")), 0o600))
		return path
	}
	owner, dispatcher := file("owner.yaml", part(t, page, "owner.yaml")), file("dispatcher.yaml", part(t, page, "dispatcher.yaml"))
	for _, line := range strings.Split(part(t, page, "five minutes"), "\n") {
		if command, _, _ := strings.Cut(line, "#"); strings.TrimSpace(command) != "" && !strings.HasPrefix(line, "dispatcher run") {
			command = strings.NewReplacer("dispatcher.yaml", dispatcher, "owner.yaml", owner).Replace(strings.TrimPrefix(strings.TrimSpace(command), "dispatcher "))
			run(t, "", strings.Fields(command)...).ok(t)
		}
	}
	o.login(t, name["outbox_owner"], secret)
	grants := strings.NewReplacer("APP", name["app"]).Replace(part(t, front, "producer"))
	o.exec(t, "set role "+name["outbox_owner"]+"; "+grants+"; reset role")
	o.exec(t, "set role "+name["app"]+`; select outbox.enqueue('shop', 'orders', '{}'); select outbox.enqueue_batch('{shop}', '{orders}', array['{}'::jsonb]); reset role`)

	environment := strings.ReplaceAll(part(t, page, "dispatcher.yaml"), "{dsnFile: /etc/outbox/dsn}", "{dsnEnv: DATABASE_URL}")
	cmd := command(t, "once", "-f", file("environment.yaml", environment), "-n", "2")
	dsn, err := os.ReadFile(filepath.Join(o.dir, name["outbox_dispatcher"]))
	check(t, err)
	cmd.Env = append(cmd.Env, "DATABASE_URL="+string(dsn))
	finish(t, cmd, "").ok(t)
	if n := o.count(t, "status = 'delivered'"); n != 2 {
		t.Errorf("%d events are delivered, want 2", n)
	}
}

// What a delivered event takes until its retention ends is what the page says; up to a fifth more on a busy machine, where old
// versions of rows live longer. It runs alone: a replication slot of another test keeps them in all databases of the server.
func TestRetentionTakesWhatThePageSays(t *testing.T) {
	const n = 20_000
	o := installed(t)
	file := o.file(t, o.dispatcher, dispatching("{log: {}}"))
	o.exec(t, fmt.Sprintf(`select count(*) from generate_series(1, %d) as g, lateral outbox.enqueue('shop', 'orders', jsonb_build_object('order', g, 'text', repeat('x', 170)),
		p_event_type => 'OrderPlaced', p_aggregate_type => 'order', p_aggregate_id => g::text, p_dedupe_key => 'placed-' || g)`, n))
	run(t, "", "once", "-f", file, "-n", fmt.Sprint(n)).ok(t)
	o.exec(t, "vacuum analyze outbox.outbox_events")
	bytes := pgtest.Value[int](o.admin, "select pg_total_relation_size('outbox.outbox_events') / "+fmt.Sprint(n))
	text, err := os.ReadFile("../../internal/retention/README.md")
	check(t, err)
	page := string(text)
	said := regexp.MustCompile(`takes ([0-9,]+) bytes`).FindStringSubmatch(page)
	if said == nil || bytes < number(t, said[1])*9/10 || bytes > number(t, said[1])*6/5 {
		t.Errorf("an event takes %d bytes, and the page says %q", bytes, said)
	}
	rows := regexp.MustCompile(`(?m)^\| ([0-9,]+) \| ([0-9.,]+) GB \| ([0-9.,]+) GB \| ([0-9.,]+) GB \|$`).FindAllStringSubmatch(page, -1)
	for _, row := range rows {
		for i, days := range []int{1, 3, 7} {
			want := float64(number(t, row[1])*days*86400*number(t, said[1])) / 1e9
			got, err := strconv.ParseFloat(strings.ReplaceAll(row[i+2], ",", ""), 64)
			if err != nil || math.Abs(got-want) > max(0.05, want/50) {
				t.Errorf("%s events/s for %d days are %.1f GB, and the page says %s", row[1], days, want, row[i+2])
			}
		}
	}
	if len(rows) < 4 {
		t.Errorf("the page has %d rows of rates", len(rows))
	}

	// A process that delivers 100 events/s would fill that in a week.
	o.exec(t, `insert into outbox.outbox_workers (worker, namespace, dispatcher, delivered_1h) values (gen_random_uuid(), 'shop', 'orders', 360000)`)
	report := run(t, "", "check", "-f", file, "--data")
	report.ok(t, "ok", "size", " bytes an event; at the 100 events/s of the last 1h, retention.delivered of 168h keeps ")
}

// The page of producers names each field of the lines that enqueue reads.
func TestPageNamesTheFieldsOfLines(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../producer/README.md")
	check(t, err)
	found := regexp.MustCompile(`(?s)fields (namespace, .*? and id)\.`).FindStringSubmatch(run(t, "", "enqueue", "--help").out)
	if found == nil {
		t.Fatal("the help of enqueue does not name the fields")
	}
	_, section, _ := strings.Cut(string(page), "## From the command line\n")
	section, _, _ = strings.Cut(section, "\n## ")
	for _, field := range regexp.MustCompile(`[a-z_]+`).FindAllString(strings.Replace(found[1], " and ", ", ", 1), -1) {
		if !strings.Contains(section, "`"+field+"`") {
			t.Errorf("the page does not name %s", field)
		}
	}
}

// number is a figure of a page.
func number(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(strings.ReplaceAll(text, ",", ""))
	check(t, err)
	return n
}
