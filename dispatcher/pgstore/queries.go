package pgstore

import (
	"embed"
	"strings"

	"github.com/jackc/pgx/v5"
)

//go:embed sql/*.sql
var files embed.FS

// queries are the statements, for one schema.
type queries struct {
	claim, claimFew, claimKeyed, claimDense, returned, ack, delete, nack, extend, release, topics, depth, groups, blocked, sampleEvents, sampleDead, oldestTransaction, sizes, heartbeat, leave, sharing, past, pastRows, orphans, outcomes string
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
		claim: read("claim"), claimFew: read("claim_few"), claimKeyed: read("claim_keyed"), claimDense: read("claim_dense"), returned: read("returned"), ack: read("ack"), delete: read("delete"), nack: read("nack"), extend: read("extend"), release: read("release"),
		topics: read("topics"), depth: read("depth"), groups: read("groups"), blocked: read("blocked"), sampleEvents: read("sample_events"), sampleDead: read("sample_dead"),
		oldestTransaction: read("oldest_transaction"), sizes: read("sizes"),
		heartbeat: read("heartbeat"), leave: read("leave"), sharing: read("sharing"),
		past: read("past"), pastRows: read("past_rows"),
		orphans: read("orphans"), outcomes: read("outcomes"),
	}
}
