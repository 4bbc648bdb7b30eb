package sqlfile

import (
	"maps"
	"testing"
	"testing/fstest"
)

// A statement names the tables of the schema, whatever that is called, and nothing else changes.
func TestStatementsNameTheTablesOfTheSchema(t *testing.T) {
	files := fstest.MapFS{
		"sql/sizes.sql": {Data: []byte("-- name: size\n-- What it takes.\nselect 'outbox.outbox_events'::regclass, outbox from outbox.outbox_workers\n\n-- name: one\n\nselect 1\n")},
		"two.sql":       {Data: []byte("-- name: two\nselect 2")},
	}
	for schema, prefix := range map[string]string{"outbox": `"outbox"`, `My "box`: `"My ""box"`} {
		want := map[string]string{
			"size": "-- What it takes.\nselect '" + prefix + ".outbox_events'::regclass, outbox from " + prefix + ".outbox_workers",
			"one":  "select 1",
			"two":  "select 2",
		}
		if got := All(files, schema); !maps.Equal(got, want) {
			t.Errorf("schema %s: %q, want %q", schema, got, want)
		}
		if got := Reader(files, schema)("one"); got != want["one"] {
			t.Errorf("schema %s: %q, want %q", schema, got, want["one"])
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("a statement that is not there was read")
		}
	}()
	Reader(files, "outbox")("none")
}
