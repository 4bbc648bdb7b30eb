package replay

import (
	"embed"

	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sqlfile"
)

//go:embed sql/*.sql
var files embed.FS

// queries are the statements, for one schema.
type queries struct {
	add, begin, dryRun, matched, last, lock, canary, pick, resolve, observe, note, skipLater, giveUp, finish, progress, waits string
}

// load reads the files.
func load(schema string) queries {
	read := sqlfile.Reader(files, schema)
	return queries{
		add: read("add"), begin: read("begin"), dryRun: read("dry_run"), matched: read("matched"), last: read("last"), lock: read("lock"), canary: read("canary"), pick: read("pick"), resolve: read("resolve"),
		observe: read("observe"), note: read("note"), skipLater: read("skip_later"), giveUp: read("give_up"), finish: read("finish"), progress: read("progress"), waits: read("waits"),
	}
}
