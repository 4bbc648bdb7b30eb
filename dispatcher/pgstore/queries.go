package pgstore

import (
	"embed"
	"strings"

	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sqlfile"
)

//go:embed sql/*.sql
var files embed.FS

// queries are the statements, for one schema.
type queries struct {
	fence, fenceRaise, sequencesBehind, claim, claimFair, claimKeyed, claimDense, writers, ack, delete, nack, lost, extend, release, topics, depth, groups, blocked, sampleEvents, sampleDead, oldestTransaction, sizes, heartbeat, leave, sharing, past, pastRows, orphans, outcomes, begin, oddTimes string
}

// load reads the files.
func load(schema string) queries {
	read := sqlfile.Reader(files, schema)
	_, claimed, _ := strings.Cut(read("claim"), "-- claim_fair.sql continues here.\n")
	return queries{
		fence: read("fence"), fenceRaise: read("fence_raise"), sequencesBehind: read("sequences_behind"),
		claim: read("claim"), claimFair: read("claim_fair") + claimed, claimKeyed: read("claim_keyed"), claimDense: read("claim_dense"), writers: read("writers"), ack: read("ack"), delete: read("delete"), nack: read("nack"), lost: read("lost"), extend: read("extend"), release: read("release"),
		topics: read("topics"), depth: read("depth"), groups: read("groups"), blocked: read("blocked"), sampleEvents: read("sample_events"), sampleDead: read("sample_dead"),
		oldestTransaction: read("oldest_transaction"), sizes: read("sizes"), begin: read("begin"),
		heartbeat: read("heartbeat"), leave: read("leave"), sharing: read("sharing"),
		past: read("past"), pastRows: read("past_rows"),
		orphans: read("orphans"), oddTimes: read("odd_times"), outcomes: read("outcomes"),
	}
}
