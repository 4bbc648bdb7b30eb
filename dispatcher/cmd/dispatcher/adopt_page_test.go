package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/hack/pgtest"
)

// What the page on adoption tells a user to run does what the page prints, in the order of the page: with the binary, on a
// real PostgreSQL, with logins that have the rights that the page names and no others.
//
// CONTRACT: C-91
func TestAdoptionPage(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../migrations/adopt/README.md")
	check(t, err)
	story, debezium, found := strings.Cut(string(text), "\n## Debezium's table\n")
	if !found {
		t.Fatal("the page has no part about Debezium's table")
	}
	o := newOutbox(t, pgtest.Empty(t))
	o.exec(t, "grant create, usage on schema public to "+o.producer)
	names := strings.NewReplacer("shop_app", o.producer, "outbox_owner", o.owner)
	files := strings.NewReplacer("owner.yaml", o.file(t, o.owner, ""), "orders.yaml", o.file(t, o.dispatcher, dispatching("{log: {}}")))

	blocks := regexp.MustCompile("(?s)(?:<!-- as (?:a )?(\\w+) -->\n)?```(sql|console)\n(.*?)```").FindAllStringSubmatch(story, -1)
	commands := 0
	for _, block := range blocks {
		as, kind, body := block[1], block[2], block[3]
		switch {
		case kind == "sql" && as != "":
			o.exec(t, asRole(names.Replace(as), names.Replace(body)))
		case kind == "console":
			for _, one := range regexp.MustCompile(`(?m)^\$ dispatcher `).Split(body, -1)[1:] {
				line, want, _ := strings.Cut(one, "\n")
				got := run(t, "", strings.Fields(files.Replace(line))...)
				got.ok(t)
				if told, shown := settled(got.out), settled(want); told != shown {
					t.Errorf("$ dispatcher %s\nprints\n%s\nand the page says\n%s", line, told, shown)
				}
				commands++
			}
		}
	}
	if commands < 7 {
		t.Errorf("the page has %d commands, want all of the story", commands)
	}
	debeziumByHand(t, o, names.Replace(debezium))
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
	} {
		text = regexp.MustCompile(pattern).ReplaceAllString(text, word)
	}
	return strings.TrimSpace(text)
}

// debeziumByHand takes the statements of the page: a row becomes an event with its id, also when its producer deletes it at once.
func debeziumByHand(t *testing.T, o *outbox, page string) {
	t.Helper()
	o.exec(t, asRole(o.producer, `create table public.outboxevent (id uuid primary key, aggregatetype varchar(255) not null, aggregateid varchar(255) not null, type varchar(255) not null, payload jsonb)`))
	trigger := regexp.MustCompile("(?s)```sql\n(create function .*?)```").FindStringSubmatch(page)
	if trigger == nil {
		t.Fatal("the page has no trigger for Debezium's table")
	}
	o.exec(t, asRole(o.owner, trigger[1]))
	o.exec(t, asRole(o.producer, `begin;
		insert into public.outboxevent values ('0190b6c4-1f2e-7abc-8def-001122334455', 'Order', '42', 'OrderPlaced', '{"total": 10}');
		delete from public.outboxevent;
		commit`))
	if n := o.count(t, `id = '0190b6c4-1f2e-7abc-8def-001122334455' and topic = 'Order' and aggregate_id = '42' and event_type = 'OrderPlaced' and payload = '{"total": 10}' and status = 'pending'`); n != 1 {
		t.Errorf("%d events of the row, want one with its id", n)
	}
}
