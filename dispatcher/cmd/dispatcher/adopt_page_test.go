package main

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	hackkafka "github.com/outbox-operator/outbox-operator/hack/servers/kafka"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// The commands of the adoption page print what the page prints, in its order: with the binary, on a real PostgreSQL, with
// logins that have only the rights that the page names.
//
// CONTRACT: C-91
func TestAdoptionPage(t *testing.T) {
	t.Parallel()
	story, _ := adoptionPage(t)
	o := newOutbox(t, pgtest.Empty(t))
	o.exec(t, "grant create, usage on schema public to "+o.producer)
	files := strings.NewReplacer("owner.yaml", o.file(t, o.owner, ""), "orders.yaml", o.file(t, o.dispatcher, dispatching("{log: {}}")))
	if n := o.play(t, story, files, nil); n < 7 {
		t.Errorf("the page has %d commands, want all of the story", n)
	}
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
	if n < 7 {
		t.Errorf("the page has %d commands, want all of the story", n)
	}
	held := `select string_agg(substring(encode(data, 'escape') from '0190b6c4-[-0-9a-f]{27}'), ' ') from pg_logical_slot_peek_binary_changes('` + slot + `', null, null, 'proto_version', '1', 'publication_names', 'dbz_publication') where get_byte(data, 0) = ascii('I')`
	if got := o.text(t, held); got != "0190b6c4-1f2e-7abc-8def-001122334453" {
		t.Errorf("after the way back the slot holds %q, want the event that was not delivered", got)
	}
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
	got := run(t, "", strings.Fields(files.Replace(arguments))...)
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
	file := o.file(t, o.dispatcher, "name: orders\nnamespace: shop\nserver: {address: '127.0.0.1:0'}\n"+strings.ReplaceAll(settings[1], "kafka:9092", b.Address(hackkafka.Plain)))
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
