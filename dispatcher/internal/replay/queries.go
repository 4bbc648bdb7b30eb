package replay

import (
	"embed"

	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sqlfile"
)

//go:embed sql/*.sql
var files embed.FS

// queries are the statements, for one schema.
type queries struct{ begin, dryRun, free, last, read, waits, step, observe, stop string }

// load reads the files.
func load(schema string) queries {
	read := sqlfile.Reader(files, schema)
	return queries{
		begin: read("begin"), dryRun: read("dry_run"), free: read("free"), last: read("last"), read: read("read"), waits: read("waits"),
		step: read("step"), observe: read("observe"), stop: read("stop"),
	}
}
