package replay

import (
	"embed"
	"strings"

	"github.com/jackc/pgx/v5"
)

//go:embed sql/*.sql
var files embed.FS

// queries are the statements, for one schema.
type queries struct {
	add, matched, last, lock, canary, pick, resolve, observe, note, skipLater, giveUp, finish, progress string
}

// load reads the files, which name the tables in the default schema, so that they run as they are.
func load(schema string) queries {
	read := func(name string) string {
		sql, err := files.ReadFile("sql/" + name + ".sql")
		if err != nil {
			panic(err) // the binary was built without it
		}
		return strings.ReplaceAll(string(sql), "outbox.outbox_", pgx.Identifier{schema}.Sanitize()+".outbox_")
	}
	return queries{
		add: read("add"), matched: read("matched"), last: read("last"), lock: read("lock"), canary: read("canary"), pick: read("pick"), resolve: read("resolve"),
		observe: read("observe"), note: read("note"), skipLater: read("skip_later"), giveUp: read("give_up"), finish: read("finish"), progress: read("progress"),
	}
}
