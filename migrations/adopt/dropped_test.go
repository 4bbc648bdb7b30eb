package adopt_test

import (
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations/adopt"
)

// The way back of a table that was dropped removes what is kept of the adoption, and says what waits.
func TestBackOfDroppedTableRemovesAdoption(t *testing.T) {
	r := newRig(t, m10Service())
	r.step(adopt.ToShadow, adopt.Shadow, true)
	r.step(adopt.Cutover, adopt.Live, true)
	r.produce(t.Context(), 0)
	r.produce(t.Context(), 1)
	r.exec(`update outbox.outbox_events set status = 'delivered' where payload ->> 'n' = '0'`)

	r.exec(`alter table m10_recovery.outbox rename to old`)
	if _, err := r.try(adopt.Back, adopt.Options{}); err == nil || !strings.Contains(err.Error(), "the table was renamed, with the trigger: name it back") {
		t.Errorf("of a table that was renamed: %v", err)
	}
	conn, err := r.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = adopt.Read(t.Context(), conn.Conn(), pgtest.Schema, "")
	conn.Release()
	if err == nil || !strings.Contains(err.Error(), "end the adoption if it was dropped: dispatcher adopt back --name m10") {
		t.Errorf("the status: %v", err)
	}

	r.exec(`drop table m10_recovery.old`)
	dry, err := r.try(adopt.Back, adopt.Options{DryRun: true})
	if err != nil || !dry.Changed || len(dry.SQL) != 3 {
		t.Errorf("a dry run %+v: %v", dry, err)
	}
	result := r.step(adopt.Back, adopt.None, true)
	if want := "Table m10_recovery.outbox was dropped, and what was kept of its adoption is removed. 1 events of it are not delivered yet: they stay in the outbox, and a dispatcher of namespace " + r.old.spec.Namespace + " delivers them."; result.Next != want {
		t.Errorf("says %q", result.Next)
	}
	kept := pgtest.Value[int](r, `select (select count(*) from outbox.outbox_adoptions) + (select count(*) from outbox.outbox_adopted) + (select count(*) from pg_proc where proname like 'outbox_adopt\_m10%')`)
	if waiting := pgtest.Value[int](r, `select count(*) from outbox.outbox_events where status = 'pending'`); kept != 0 || waiting != 1 {
		t.Errorf("%d rows and functions are kept, %d events wait", kept, waiting)
	}
	r.step(adopt.Back, adopt.None, false)
}
