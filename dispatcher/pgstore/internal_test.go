package pgstore

import (
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// An older schema differs from none. There is no older one yet to make in a database.
func TestCompareSchemaTooOld(t *testing.T) {
	t.Parallel()
	got := compareSchema("outbox", 3, 1, 4)
	if got.State != dispatcher.SchemaTooOld || got.Version != 3 || got.Required != 4 || !strings.Contains(got.Message, "dispatcher migrate up") {
		t.Errorf("got %+v", got)
	}
}

// Every statement names the tables of its schema alone.
func TestLoad(t *testing.T) {
	t.Parallel()
	q := load("mine")
	for name, sql := range map[string]string{
		"claim": q.claim, "claim_small": q.claimSmall, "claim_keyed": q.claimKeyed, "claim_dense": q.claimDense, "returned": q.returned, "blocked": q.blocked, "ack": q.ack, "delete": q.delete, "nack": q.nack, "extend": q.extend, "release": q.release,
		"topics": q.topics, "depth": q.depth, "sample_events": q.sampleEvents, "sample_dead": q.sampleDead, "heartbeat": q.heartbeat, "leave": q.leave, "sharing": q.sharing,
		"past": q.past, "past_rows": q.pastRows, "orphans": q.orphans, "outcomes": q.outcomes,
	} {
		if strings.Contains(sql, "outbox.outbox_") || !strings.Contains(sql, `"mine".outbox_`) {
			t.Errorf("%s.sql is not of schema mine: %s", name, sql)
		}
	}
}
