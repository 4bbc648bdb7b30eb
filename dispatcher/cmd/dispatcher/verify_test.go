package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// The journal settings of the file are applied; without any the journal stays as it is.
// REQUIREMENT: STORAGE-49
func TestMigrateSetsTheJournal(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Empty(t))
	up := func(more string) output { return run(t, "", "migrate", "up", "-f", o.file(t, o.owner, more)) }
	up("journal: {mode: Enabled, retention: 720h}\n").ok(t, "the journal of schema outbox is on; records are kept for 720h")
	if again := up(""); strings.Contains(again.out, "journal") {
		t.Errorf("without journal in the file:\n%s", again.out)
	}
	is := pgtest.Value[string](o.admin, `select enabled || ' ' || retention from outbox.outbox_journal_settings`)
	if is != "true 720:00:00" {
		t.Errorf("the journal is %s", is)
	}
	up("journal: {mode: Disabled}\n").ok(t, "the journal of schema outbox is off; records are kept for 168h")
	up("journal: {retention: 1h}\n").ended(t, 78, `journal.mode is ""; choose one of Enabled, Disabled`, "journal.retention")
	run(t, "", "migrate", "up", "-f", o.file(t, o.dispatcher, "journal: {mode: Enabled}\n")).ended(t, 1, "log in as the owner")
}

// verify, with a dispatcher's login, finds no difference, and then names a row that was changed past the journal. An
// event's history has its records.
//
// CONTRACT: C-61
// REQUIREMENT: STORAGE-71
func TestVerifyNamesARowThatDiffers(t *testing.T) {
	t.Parallel()
	o := installed(t)
	file := o.file(t, o.dispatcher, dispatching("{log: {}}"))
	run(t, "", "verify", "-f", file).ended(t, 1, "the journal is off", "set journal.mode to Enabled, and run `dispatcher migrate up`")
	run(t, "", "migrate", "up", "-f", o.file(t, o.owner, "journal: {mode: Enabled}\n")).ok(t)
	o.enqueue(t, 2)
	run(t, "", "once", "-f", file, "-n", "10").ok(t, "delivered 2, failed 0")
	run(t, "", "verify", "-f", file).ok(t, "6 records of 2 events", ": no difference\n")

	id := pgtest.Value[string](o.admin, `select id::text from outbox.outbox_events order by seq limit 1`)
	run(t, "", "events", "show", "-f", file, id).ok(t, "journal", "insert: none -> pending, attempts 0, token 0, login "+o.producer,
		"claim: pending -> processing, attempts 1, token 1, worker ", "ack: processing -> delivered", ", login "+o.dispatcher+", transaction ", ", LSN ")
	tx, err := o.admin.Begin(t.Context())
	check(t, err)
	_, err = tx.Exec(t.Context(), `set local session_replication_role = replica`)
	check(t, err)
	_, err = tx.Exec(t.Context(), `update outbox.outbox_events set status = 'pending' where id = $1`, id)
	check(t, err)
	check(t, tx.Commit(t.Context()))
	run(t, "", "verify", "-f", file).ended(t, 3, "1 differences", "StateDiffers", id,
		"the journal says delivered (attempts 1, lease 1), and the row is pending (attempts 1, lease 1)", "dispatcher: journal and rows differ in 1 places")
	found := run(t, "", "verify", "-f", file, "--since", "1h", "-o", "json")
	found.ended(t, 3)
	var report struct {
		Events, Records, Found int
		Differences            []map[string]any
	}
	if err := json.Unmarshal([]byte(found.out), &report); err != nil || report.Events != 2 || report.Records != 6 || report.Found != 1 ||
		report.Differences[0]["kind"] != "StateDiffers" || report.Differences[0]["event"] != id || report.Differences[0]["lsn"] == nil {
		t.Errorf("%+v, %v:\n%s", report, err, found.out)
	}
	o.exec(t, "delete from outbox.outbox_events")
	run(t, "", "events", "show", "-f", file, id).ok(t, "gone: its row was removed", "change: pending -> gone")
	run(t, "", "verify", "-f", file, "-o", "yaml").ended(t, 3, "kind: Illegal", "kind: Gap")
	run(t, "", "verify", "-f", file, "--limit", "0").ended(t, 1, "--limit is 0; set it to 1 to 100000")
	run(t, "", "verify", "-f", file, "-o", "csv").ended(t, 1, `--output is "csv"; set it to table, json or yaml`)
}
