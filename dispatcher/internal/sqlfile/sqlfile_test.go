package sqlfile

import (
	"testing"
	"testing/fstest"
)

// A statement names the tables of the schema, whatever that is called, and nothing else changes.
func TestReader(t *testing.T) {
	files := fstest.MapFS{"sql/size.sql": {Data: []byte(`select 'outbox.outbox_events'::regclass, outbox from outbox.outbox_workers`)}}
	for schema, want := range map[string]string{
		"outbox":  `select '"outbox".outbox_events'::regclass, outbox from "outbox".outbox_workers`,
		`My "box`: `select '"My ""box".outbox_events'::regclass, outbox from "My ""box".outbox_workers`,
	} {
		if got := Reader(files, schema)("size"); got != want {
			t.Errorf("schema %s: %s, want %s", schema, got, want)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("a file that is not there was read")
		}
	}()
	Reader(files, "outbox")("none")
}
