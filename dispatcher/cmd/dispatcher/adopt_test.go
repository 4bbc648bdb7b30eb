package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"sigs.k8s.io/yaml"

	hackkafka "github.com/outbox-operator/outbox-operator/hack/servers/kafka"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// Flags are checked, errors have their remedy, and what is refused is an exit code and JSON. TestAdoptionPage has the way from the
// shadow to the way back.
//
// CONTRACT: C-91
func TestAdoptRefusesAndReports(t *testing.T) {
	t.Parallel()
	o := installed(t)
	o.exec(t, `create table public.events (id bigserial primary key, kind text, body jsonb not null, sent_at timestamptz, at timestamptz not null default now());
		alter table public.events owner to `+o.producer)
	file := o.file(t, o.owner, "")
	insert := func(body string) {
		t.Helper()
		o.exec(t, fmt.Sprintf(`set role %s; insert into public.events (kind, body) values ('OrderPaid', %s); reset role`, o.producer, body))
	}
	shadow := []string{"adopt", "shadow", "-f", file, "--layout", "columns", "--table", "public.events", "--namespace", "shop", "--topic", "orders", "--name", "orders",
		"--column", "id=id", "--column", "payload=body", "--column", "type=kind", "--column", "completed=sent_at", "--column", "created=at"}

	run(t, "", "adopt", "status", "-f", file).ok(t, "no table is adopted; begin with dispatcher adopt shadow")
	run(t, "", "adopt", "status", "-f", file, "--name", "orders").ended(t, 1, "there is no adoption orders")
	run(t, "", "adopt", "back", "-f", file).ok(t, "Nothing is adopted.")
	run(t, "", "adopt", "cutover", "-f", file).ended(t, 1, "begin with its shadow")
	run(t, "", shadow...).ended(t, 1, "is not the owner of table public.events", "grant ")
	o.exec(t, fmt.Sprintf("grant %s to %s", o.producer, o.owner))
	insert(`'{"n": 1}'`)
	run(t, "", append(shadow, "--column", "n")...).ended(t, 1, `--column is "n"`)
	run(t, "", append(shadow, "--dry-run")...).ok(t, "nothing was changed", "create constraint trigger outbox_adopt_orders after insert or update or delete")
	run(t, "", shadow...).ok(t, "adoption orders: Shadow\n")
	run(t, "", shadow...).ok(t, "adoption orders: Shadow, as it was")
	insert(`jsonb_build_object('secret', repeat('x', 1100000))`)
	refused := run(t, "", "adopt", "status", "-f", file, "-o", "json")
	refused.ended(t, 3, "1 refused")
	var status struct {
		Adoptions []struct {
			Name, State string
			Refused     int
			Refusals    []struct{ ID, Reason string }
		}
	}
	check(t, json.Unmarshal([]byte(refused.out), &status))
	if a := status.Adoptions[0]; a.Name != "orders" || a.State != "Shadow" || a.Refused != 1 || a.Refusals[0].ID != "2" || strings.Contains(refused.out, "xxx") {
		t.Errorf("%+v", a)
	}
	o.exec(t, `delete from public.events where id = 2`)
	insert(`'{"n": 3}'`)
	run(t, "", "adopt", "cutover", "-f", file, "--max-rows", "1").ended(t, 1, "more than 1 rows of public.events are open")
}

const debeziumTable = `create table public.outboxevent (id uuid primary key default gen_random_uuid(), aggregatetype varchar(255) not null,
	aggregateid varchar(255) not null, type varchar(255) not null, payload jsonb)`

// The flags name the connector's slot and publication, and status shows the slot. Package adopt has the other errors.
//
// CONTRACT: C-91
func TestAdoptDebeziumShowsTheSlot(t *testing.T) {
	t.Parallel()
	o := installed(t)
	o.exec(t, debeziumTable+"; alter table public.outboxevent owner to "+o.owner+"; create publication orders for table public.outboxevent; alter role "+o.owner+" replication")
	file, slot := o.file(t, o.owner, shop), o.slot(t)
	shadow := []string{"adopt", "shadow", "-f", file, "--layout", "debezium", "--slot", slot}
	run(t, "", shadow...).ended(t, 1, "publication dbz_publication does not publish what is inserted into table public.outboxevent; give the publication.name of the connector (--publication)")
	shadow = append(shadow, "--publication", "orders")
	run(t, "", shadow...).ok(t, "adoption debezium: Shadow\n", "Then stop the connector, and run dispatcher adopt cutover")
	o.exec(t, `insert into public.outboxevent (aggregatetype, aggregateid, type, payload) values ('Order', '1', 'OrderPaid', '{}'), ('', '1', 'OrderPaid', '{}')`)
	run(t, "", "adopt", "cutover", "-f", file).ok(t, "adoption debezium: Live; 1 rows moved, 1 refused", "The slot keeps WAL until then.")
	connector := o.connect(t, slot, "orders")
	run(t, "", "adopt", "status", "-f", file).ended(t, 3, "Stop the connector: it sends what the outbox has taken over.")
	o.disconnect(t, connector, slot)
	o.exec(t, "select pg_drop_replication_slot('"+slot+"')")
	run(t, "", "adopt", "status", "-f", file).ended(t, 3, "slot "+slot+" is missing\nwaiting: ours 1")
	o.exec(t, "select pg_create_logical_replication_slot('"+slot+"', 'pgoutput')") // it is dropped at the end
}

// A connector cannot read a server whose WAL cannot be decoded.
func TestAdoptDebeziumNeedsLogicalDecoding(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Server(t).DSN("postgres")).migrated(t)
	o.exec(t, debeziumTable+"; alter table public.outboxevent owner to "+o.owner)
	run(t, "", "adopt", "shadow", "-f", o.file(t, o.owner, shop), "--layout", "debezium").ended(t, 1,
		"there is no replication slot debezium, and with wal_level replica the server cannot have one; log in to the server that the connector reads")
}

// received is a request of the http sink.
type received struct {
	header http.Header
	body   string
}

// consumerOf takes requests.
func consumerOf(t *testing.T) (url string, requests <-chan received) {
	t.Helper()
	all := make(chan received, 100)
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		all <- received{r.Header, string(body)}
	}))
	t.Cleanup(s.Close)
	return s.URL, all
}

// adoptTable makes a table of the service's, and takes it over. The rows are as inserted before the cut-over.
func (o *outbox) adoptTable(t *testing.T, ddl, rows string, shadow ...string) (file string) {
	t.Helper()
	file = o.file(t, o.owner, "")
	o.exec(t, fmt.Sprintf("grant create, usage on schema public to %[1]s; grant %[1]s to %[2]s", o.producer, o.owner))
	o.exec(t, asRole(o.producer, ddl+";"+rows))
	run(t, "", append([]string{"adopt", "shadow", "-f", file}, shadow...)...).ok(t)
	run(t, "", "adopt", "cutover", "-f", file).ok(t)
	return file
}

const storageTable = `create table storage_outbox (
	outbox_id varchar(32) primary key, aggregate_id varchar(255) not null, aggregate_type varchar(50) not null, event_type varchar(100) not null,
	event_payload jsonb not null, event_metadata jsonb not null default '{}', sequence_number bigint not null, created_at timestamptz not null default now(),
	delivery_attempts integer not null default 0, delivery_status varchar(20) not null default 'pending', first_attempt_at timestamptz,
	last_attempt_at timestamptz, next_retry_at timestamptz, delivered_at timestamptz, target_topic varchar(255) not null, partition_key varchar(255),
	max_attempts integer not null default 5, base_delay_ms integer not null default 1000, max_delay_ms integer not null default 60000,
	backoff_multiplier decimal(3,2) not null default 2.0)`

// The message of an adopted row is what publish_single_event of the Storage document makes of it: their ids and numbers.
// enqueue continues their numbers.
//
// CONTRACT: C-91
func TestAdoptedStorageMessages(t *testing.T) {
	t.Parallel()
	o := installed(t)
	const insert = `insert into storage_outbox (outbox_id, aggregate_id, aggregate_type, event_type, event_payload, event_metadata, sequence_number, target_topic, partition_key, max_delay_ms, backoff_multiplier)
		values ('outbox_%[1]d', '7', 'memory', 'STORAGE_MEMORY_ADDED', '{"total": 0.10, "id": 9007199254740993, "metadata": "gone"}', %[2]s, %[1]d, 'memories', '7', 90000000, 0.5)`
	flat := `'{"correlation_id": "c-1", "event_version": "1.0.0"}'`
	file := o.adoptTable(t, storageTable, fmt.Sprintf(insert, 41, flat), "--layout", "storage", "--namespace", "shop")
	o.exec(t, asRole(o.producer, fmt.Sprintf(insert, 42, flat)))
	o.exec(t, asRole(o.producer, fmt.Sprintf(insert, 43, `'{"tags": ["a", "b"]}'`)))
	run(t, "", "adopt", "status", "-f", file).ended(t, 3, "1 refused")
	o.exec(t, `select outbox.enqueue('shop', 'memories', '{}', p_aggregate_type => 'memory', p_aggregate_id => '7', p_options => '{"aggregateSequence": true}')`)

	url, requests := consumerOf(t)
	dispatcher := o.file(t, o.dispatcher, dispatching("{http: {url: '"+url+"'}}")+"message: {format: Storage}\ndelivery: {ordering: Key}\n")
	run(t, "", "once", "-f", dispatcher, "-n", "3").ok(t, "delivered 3, failed 0")
	for _, number := range []int{41, 42} {
		got := <-requests
		want := fmt.Sprintf(`{"id":9007199254740993,"metadata":{"correlation_id":"c-1","event_version":"1.0.0","outbox_id":"outbox_%[1]d","sequence_number":%[1]d},"total":0.10}`, number)
		if h := got.header; got.body != want || h.Get("event_type") != "STORAGE_MEMORY_ADDED" || h.Get("aggregate_id") != "7" || h.Get("correlation_id") != "c-1" {
			t.Errorf("%v %s, want %s", h, got.body, want)
		}
	}
	var enqueued struct {
		Metadata struct {
			Number int `json:"sequence_number"`
		}
	}
	check(t, json.Unmarshal([]byte((<-requests).body), &enqueued))
	need.Want(t, 44, "enqueue gives the number %d, want 44, after their 43, which is refused", enqueued.Metadata.Number)
	o.exec(t, `delete from public.storage_outbox where outbox_id = 'outbox_43'`)
	run(t, "", "adopt", "back", "-f", file).ok(t, "warning: enqueue has given numbers beyond their table's to 1 aggregates")
}

const modkitTable = `create table modkit_outbox_events (
	id uuid primary key, namespace text not null, topic text not null, tenant_id uuid, dedupe_key text, payload jsonb not null, status text not null,
	attempts int not null default 0, next_attempt_at timestamptz not null default now(), locked_by uuid, locked_until timestamptz, last_error text,
	created_at timestamptz not null default now(), updated_at timestamptz not null default now());
create unique index on modkit_outbox_events (namespace, topic, dedupe_key) where dedupe_key is not null`

// The message of an adopted row has what ModKit's ClaimedMessage has. Rows of another namespace stay with their worker, or
// keep their own.
//
// CONTRACT: C-91
// REQUIREMENT: cpt-cf-mini-chat-flow-usage-outbox-dispatch, cpt-cf-mini-chat-dod-usage-outbox-idempotency
func TestAdoptedModKitMessages(t *testing.T) {
	t.Parallel()
	o := installed(t)
	const tenant = "0190b6c4-1f2e-7abc-8def-001122334455"
	insert := func(id, namespace, more string) string {
		return `insert into modkit_outbox_events (id, namespace, topic, tenant_id, dedupe_key, payload, status, attempts) values ('0190b6c4-1f2e-7abc-8def-00000000000` + id +
			`', '` + namespace + `', 'usage', ` + more + `)`
	}
	full := `'` + tenant + `', '` + tenant + `/turn1/req1', '{"tokens": 1.50}', `
	file := o.adoptTable(t, modkitTable, insert("1", "shop", full+`'pending', 2`)+";"+insert("2", "billing", `null, null, '[1]', 'pending', 0`)+";"+
		insert("3", "shop", `null, null, '{"n": 3}', 'dead', 20`), "--layout", "modkit", "--namespace", "shop")
	o.exec(t, asRole(o.producer, insert("4", "shop", `null, null, '{"n": 4}', 'pending', 0`)))
	o.exec(t, asRole(o.producer, insert("5", "billing", `null, null, '{"n": 5}', 'pending', 0`)))
	run(t, "", "adopt", "status", "-f", file).ok(t, "theirs 1, ours 1", "waiting: theirs 0, ours 2")

	url, requests := consumerOf(t)
	run(t, "", "once", "-f", o.file(t, o.dispatcher, dispatching("{http: {url: '"+url+"'}}")), "-n", "2").ok(t, "delivered 2, failed 0")
	all := map[string]received{}
	for range 2 {
		one := <-requests
		all[one.header.Get("ce-id")] = one
	}
	for _, want := range []received{
		{http.Header{"Ce-Id": {"0190b6c4-1f2e-7abc-8def-000000000001"}, "Ce-Tenantid": {tenant}, "Ce-Dedupekey": {tenant + "/turn1/req1"}, "Ce-Attempt": {"3"}}, `{"tokens": 1.50}`},
		{http.Header{"Ce-Id": {"0190b6c4-1f2e-7abc-8def-000000000004"}, "Ce-Tenantid": nil, "Ce-Dedupekey": nil, "Ce-Attempt": {"1"}}, `{"n": 4}`},
	} {
		got := all[want.header["Ce-Id"][0]]
		want.header["Ce-Outboxnamespace"], want.header["Ce-Topic"] = []string{"shop"}, []string{"usage"}
		for name, values := range want.header {
			need.That(t, fmt.Sprint(got.header[name]) == fmt.Sprint(values), "%s is %v, want %v", name, got.header[name], values)
		}
		need.Want(t, want.body, "the body is %s, want %s", got.body)
	}
	run(t, "", "adopt", "back", "-f", file).ok(t)
	need.Want(t, "delivered pending dead delivered pending", "their rows are %s", o.text(t, `select string_agg(status, ' ' order by id) from public.modkit_outbox_events`))

	run(t, "", "adopt", "shadow", "-f", file, "--layout", "modkit").ok(t, `status "pending": 2 rows, to be sent`)
	run(t, "", "adopt", "cutover", "-f", file).ok(t, "2 rows moved")
	need.Want(t, 2, "%d events of billing, want 2", o.count(t, "namespace = 'billing' and live"))
}

// Rows that an adoption moves and gives back are not differences between the journal and the rows; the same by hand are.
func TestVerifyKnowsAnAdoption(t *testing.T) {
	t.Parallel()
	a := installed(t)
	a.exec(t, `create table public.events (id uuid primary key default gen_random_uuid(), topic text not null, payload jsonb not null, status text not null default 'pending',
		attempt_count int not null default 0, next_attempt_at timestamptz not null default now(), created_at timestamptz not null default clock_timestamp());
		alter table public.events owner to `+a.owner)
	file := a.file(t, a.owner, "journal: {mode: Enabled}\n")
	run(t, "", "migrate", "up", "-f", file).ok(t)
	illegal := func(when string, want int) {
		t.Helper()
		result := run(t, "", "verify", "-f", file, "-o", "json")
		if want == 0 {
			result.ok(t)
		} else {
			result.ended(t, 3)
		}
		var report struct {
			Found       int
			Differences []struct{ Kind string }
		}
		check(t, json.Unmarshal([]byte(result.out), &report))
		need.That(t, report.Found == want, "%s: %d differences, want %d:\n%s", when, report.Found, want, result.out)
		for _, d := range report.Differences {
			need.Want(t, "Illegal", "%s: a difference is %s, want Illegal", d.Kind, when)
		}
	}
	adopted := func(steps ...string) {
		t.Helper()
		for _, step := range steps {
			args := []string{"adopt", step, "-f", file, "--name", "overview"}
			if step == "shadow" {
				args = append(args, "--layout", "overview", "--table", "public.events", "--namespace", "shop")
			}
			run(t, "", args...).ok(t)
		}
	}
	produce := func(n int) {
		a.exec(t, fmt.Sprintf(`insert into public.events (topic, payload) values ('orders', '{"n": %d}')`, n))
	}
	adopted("shadow")
	for n := range 3 {
		produce(n)
	}
	a.exec(t, `update public.events set attempt_count = 2 where payload ->> 'n' <> '0'`)
	adopted("cutover")
	produce(3)
	illegal("after the cut-over", 0)
	marks := pgtest.Value[int](a.admin, `select count(*) from outbox.outbox_journal where operation = 'adopt'`)
	need.Want(t, 2, "%d events are marked as moved, want those 2 with attempts", marks)

	a.exec(t, `delete from outbox.outbox_events where payload ->> 'n' = '1'`) // one that the adoption marked, by hand
	illegal("after a deletion by hand", 1)
	// A dispatcher was killed with this one, and none runs.
	a.exec(t, `update outbox.outbox_events set status = 'processing', attempts = attempts + 1, lease = 1, locked_by = id, locked_until = now() - interval '1 second' where payload ->> 'n' = '3'`)
	run(t, "", "adopt", "back", "-f", file).ok(t, "; 3 events returned")
	illegal("after the way back", 1)
	a.exec(t, `insert into outbox.outbox_events (id, namespace, topic, payload, attempts) values (gen_random_uuid(), 'shop', 'orders', '{}', 3)`)
	illegal("after an insert by hand", 2)

	adopted("shadow", "cutover", "back")
	illegal("after it all again", 2)
}

// The commands of the adoption page print what the page prints, in its order: with the binary, on a real PostgreSQL, with
// logins that have only the rights that the page names.
//
// CONTRACT: C-91
func TestCommandsOfTheAdoptionPageWork(t *testing.T) {
	t.Parallel()
	story, _ := adoptionPage(t)
	o := newOutbox(t, pgtest.Empty(t))
	o.exec(t, "grant create, usage on schema public to "+o.producer)
	files := strings.NewReplacer("owner.yaml", o.file(t, o.owner, ""), "orders.yaml", o.file(t, o.dispatcher, dispatching("{log: {}}")))
	if n := o.play(t, story, files, nil); n < 7 {
		t.Errorf("the page has %d commands, want all of the story", n)
	}
	o.runsJob(t, "../../../config/samples/adoption.yaml", "adoption orders: Shadow")
}

// runsJob runs the container of a sample's Job with its file, as the owner of the outbox, and fails the test unless it prints
// the text.
func (o *outbox) runsJob(t *testing.T, sample, want string) {
	t.Helper()
	text, err := os.ReadFile(sample)
	check(t, err)
	files, job, _ := strings.Cut(string(text), "\n---\n")
	var config struct{ Data map[string]string }
	var runs struct {
		Spec struct {
			Template struct {
				Spec struct {
					Containers []struct {
						Args         []string
						Env          []struct{ Name string }
						VolumeMounts []struct{ MountPath string }
					}
				}
			}
		}
	}
	check(t, yaml.Unmarshal([]byte(files), &config))
	check(t, yaml.Unmarshal([]byte(job), &runs))
	container, dir := runs.Spec.Template.Spec.Containers[0], t.TempDir()
	for name, file := range config.Data {
		check(t, os.WriteFile(filepath.Join(dir, name), []byte(file), 0o600))
	}
	dsn := o.dsnOf(t, o.owner)
	cmd := command(t, strings.Split(strings.ReplaceAll(strings.Join(container.Args, "\n"), container.VolumeMounts[0].MountPath, dir), "\n")...)
	cmd.Env = append(cmd.Env, container.Env[0].Name+"="+dsn)
	finish(t, cmd, "").ok(t, want)
}

// Its part about Debezium's table, with a reader of the slot for a connector. What it has not confirmed arrives at a real
// Kafka, as the page says that the router writes it.
//
// CONTRACT: C-91
func TestAdoptionPageOfDebezium(t *testing.T) {
	t.Parallel()
	_, story := adoptionPage(t)
	o := installed(t)
	slot := o.slot(t)
	o.exec(t, "grant create, usage on schema public to "+o.producer)
	var connector *pgconn.PgConn
	n := o.play(t, story, strings.NewReplacer("owner.yaml", o.file(t, o.owner, ""), "--slot debezium", "--slot "+slot), map[string]func(){
		"the connector has a slot": func() {
			o.exec(t, "create publication dbz_publication for table public.outboxevent")
		},
		"the connector reads":  func() { connector = o.connect(t, slot, "dbz_publication") },
		"the connector stops":  func() { o.disconnect(t, connector, slot) },
		"the dispatcher sends": func() { o.sendAsRouter(t, story) },
	})
	need.That(t, n >= 7, "the page has %d commands, want all of the story", n)
	held := `select string_agg(substring(encode(data, 'escape') from '0190b6c4-[-0-9a-f]{27}'), ' ') from pg_logical_slot_peek_binary_changes('` + slot + `', null, null, 'proto_version', '1', 'publication_names', 'dbz_publication') where get_byte(data, 0) = ascii('I')`
	need.Want(t, "0190b6c4-1f2e-7abc-8def-001122334453", "after the way back the slot holds %q, want the event that was not delivered", o.text(t, held))
}

// adoptionPage is the page, and its part about Debezium's table.
func adoptionPage(t *testing.T) (story, debezium string) {
	t.Helper()
	text, err := os.ReadFile("../../../migrations/adopt/README.md")
	check(t, err)
	story, debezium, found := strings.Cut(string(text), "\n## Debezium's table\n")
	if !found {
		t.Fatal("the page has no part about Debezium's table")
	}
	return story, debezium
}

// play runs what a page says, and returns how many commands of the dispatcher that were. Comments of the page name what
// others do meanwhile.
func (o *outbox) play(t *testing.T, story string, files *strings.Replacer, meanwhile map[string]func()) (commands int) {
	t.Helper()
	names := strings.NewReplacer("shop_app", o.producer, "outbox_owner", o.owner)
	blocks := regexp.MustCompile("(?s)<!-- ((?:the \\w+) [a-z ]+) -->|(?:<!-- as (?:a )?(\\w+) -->\n)?```(sql|console)\n(.*?)```").FindAllStringSubmatch(story, -1)
	for _, block := range blocks {
		event, as, kind, body := block[1], block[2], block[3], block[4]
		switch {
		case event != "":
			meanwhile[event]()
		case kind == "sql" && as != "":
			o.exec(t, asRole(names.Replace(as), names.Replace(body)))
		case kind == "console":
			for _, one := range regexp.MustCompile(`(?m)^\$ dispatcher `).Split(body, -1)[1:] {
				line, want, _ := strings.Cut(one, "\n")
				o.compare(t, line, want, files)
				commands++
			}
		}
	}
	return commands
}

// compare runs a command, and compares what it prints with the page, which may say how many lines of it there are.
func (o *outbox) compare(t *testing.T, line, want string, files *strings.Replacer) {
	t.Helper()
	arguments, _, short := strings.Cut(line, " | head")
	words := regexp.MustCompile(`"[^"]*"|\S+`).FindAllString(files.Replace(arguments), -1)
	for i := range words {
		words[i] = strings.Trim(words[i], `"`)
	}
	got := run(t, "", words...)
	printed := got.out
	if got.code != 0 {
		printed += got.err
	}
	if short {
		printed = strings.Join(strings.SplitAfter(printed, "\n")[:strings.Count(want, "\n")], "")
	}
	if fails := strings.HasPrefix(want, "dispatcher: "); fails != (got.code != 0) {
		t.Errorf("$ dispatcher %s\nends with %d:\n%s", line, got.code, printed)
	}
	if printed, shown := settled(printed), settled(want); printed != shown {
		t.Errorf("$ dispatcher %s\nprints\n%s\nand the page says\n%s", line, printed, shown)
	}
}

// asRole runs statements with a role.
func asRole(role, sql string) string {
	if role == "superuser" {
		return sql
	}
	return "set role " + role + ";\n" + sql + ";\nreset role;"
}

// settled is an output without what is another in each run.
func settled(text string) string {
	for pattern, word := range map[string]string{
		`\d{4}-\d\d-\d\dT[0-9:.]+Z`: "TIME", `[0-9a-f]{8}-[0-9a-f-]{27}`: "ID", `granted a dispatcher's rights on schema outbox to \S+`: "granted",
		`\bs_[a-z2-7]{26}\b`: "debezium", `[0-9,]+ bytes`: "BYTES", `for PID \d+`: "PID",
	} {
		text = regexp.MustCompile(pattern).ReplaceAllString(text, word)
	}
	return strings.TrimSpace(text)
}

// decodes ends the test where the server's WAL cannot be decoded.
func (o *outbox) decodes(t *testing.T) {
	t.Helper()
	if o.text(t, "show wal_level") != "logical" {
		need.Missing(t, errors.New("the server's WAL cannot be decoded; start one with wal_level = logical"))
	}
}

// slot makes a replication slot, with a name of its own because all databases of a server share them.
func (o *outbox) slot(t *testing.T) string {
	t.Helper()
	o.decodes(t)
	name := "s_" + strings.ToLower(rand.Text())
	o.exec(t, "select pg_create_logical_replication_slot('"+name+"', 'pgoutput')")
	t.Cleanup(func() { // which a database cannot be dropped with
		_, err := o.admin.Exec(context.Background(), "select pg_drop_replication_slot('"+name+"')")
		check(t, err)
	})
	return name
}

// connect reads a slot from where it stands, and confirms nothing.
func (o *outbox) connect(t *testing.T, slot, publication string) *pgconn.PgConn {
	t.Helper()
	conn, err := pgconn.Connect(t.Context(), o.admin.Config().ConnString()+"&replication=database")
	check(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) }) // again, unless the test has failed
	conn.Frontend().SendQuery(&pgproto3.Query{String: "START_REPLICATION SLOT " + slot + " LOGICAL 0/0 (proto_version '1', publication_names '" + publication + "')"})
	check(t, conn.Frontend().Flush())
	message, err := conn.ReceiveMessage(t.Context())
	check(t, err)
	if _, ok := message.(*pgproto3.CopyBothResponse); !ok {
		t.Fatalf("the slot is not read: %#v", message)
	}
	return conn
}

func (o *outbox) disconnect(t *testing.T, connector *pgconn.PgConn, slot string) {
	t.Helper()
	check(t, connector.Close(t.Context()))
	await(t, "the slot is not read any more", func() bool {
		return o.text(t, "select active::text from pg_replication_slots where slot_name = '"+slot+"'") == "false"
	})
}

// sendAsRouter delivers two events with the page's settings, and compares the records with the rows.
func (o *outbox) sendAsRouter(t *testing.T, story string) {
	t.Helper()
	settings := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindStringSubmatch(story)
	if settings == nil {
		t.Fatal("the page has no settings for messages like the router's")
	}
	b, err := hackkafka.Start(t.Context(), hackkafka.Options{})
	started(t, b, err, hackkafka.ErrMissing)
	client, err := kgo.NewClient(kgo.SeedBrokers(b.Address(hackkafka.Plain)), kgo.ConsumeTopics("outbox.event.Order"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	check(t, err)
	t.Cleanup(client.Close)
	_, err = kadm.NewClient(client).CreateTopic(t.Context(), 1, 1, nil, "outbox.event.Order")
	check(t, err)
	file := o.file(t, o.dispatcher, "namespace: shop\n"+strings.ReplaceAll(settings[1], "kafka:9092", b.Address(hackkafka.Plain)))
	run(t, "", "once", "-f", file, "-n", "2").ok(t, "delivered 2, failed 0")
	var got []string
	for len(got) < 2 {
		fetches := client.PollFetches(t.Context())
		check(t, fetches.Err())
		fetches.EachRecord(func(r *kgo.Record) {
			text := string(r.Key) + " " + string(r.Value)
			for _, h := range r.Headers {
				text += " " + h.Key + "=" + string(h.Value)
			}
			got = append(got, text)
		})
	}
	const row = ` {"total": %s} eventType=OrderPlaced id=0190b6c4-1f2e-7abc-8def-00112233445`
	for i, total := range []string{"10", "20"} {
		n := total[:1]
		if want := n + strings.Replace(row, "%s", total, 1) + n; got[i] != want {
			t.Errorf("record %q, want %q, as the router's", got[i], want)
		}
	}
}
