package pgstore

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// ListenOften is Listen that checks after less silence whether it still listens.
func ListenOften(ctx context.Context, connect func(context.Context) (*pgx.Conn, error), schema, namespace string, wake func(), log *slog.Logger) {
	l := listener{connect, schema, namespace, wake, log, 20 * time.Millisecond}
	l.run(ctx)
}

// Settings are those that hot statements run with.
const Settings = relaxed

// ClaimSQL is the claim statement of a store in schema "outbox".
func ClaimSQL() string { return load("outbox")["claim"] }

// GroupsSQL is the statement that finds the groups of dead letters, of a store in schema "outbox".
func GroupsSQL() string { return load("outbox")["groups"] }

// AckSQL is the ack statement of a store in schema "outbox".
func AckSQL() string { return load("outbox")["ack"] }

// FullPass is how often a claim starts at the front of a topic's range.
const FullPass = fullPass

// ClaimKeyedSQL is the statement that claims in order per key, of a store in schema "outbox".
func ClaimKeyedSQL() string { return load("outbox")["claim_keyed"] }

// ClaimDenseSQL is its counterpart where nearly each row is the first of its key.
func ClaimDenseSQL() string { return load("outbox")["claim_dense"] }

// Recall has the store's next claim read the keys again that it passed by.
func Recall(store dispatcher.Store) {
	k := &store.(*Store).keyed
	k.turn = time.Time{}
	for _, p := range k.byTopic {
		for hash, r := range p.keys {
			r.at = time.Time{}
			p.keys[hash] = r
		}
	}
}

// NoPass keeps the store's next claim from a step of a pass, which it would make when the last one was long ago.
func NoPass(store dispatcher.Store) {
	for _, p := range store.(*Store).keyed.byTopic {
		p.passing, p.nextPass = false, time.Now().Add(time.Hour)
	}
}

// PastSQL and PastRowsSQL are the statements that read past rows, of a store in schema "outbox".
func PastSQL() string     { return load("outbox")["past"] }
func PastRowsSQL() string { return load("outbox")["past_rows"] }

// DataSQL returns the statements of Data.
func DataSQL() (orphans, outcomes string) {
	q := load("outbox")
	return q["orphans"], q["outcomes"]
}

// Remembered is how many topics the store knows something of.
func Remembered(store dispatcher.Store) int {
	s := store.(*Store)
	return len(s.floors.byTopic) + len(s.keyed.byTopic) + len(s.turns.after)
}

// ClaimFairSQL is the statement that gives each tenant its turn, of a store in schema "outbox".
func ClaimFairSQL() string { return load("outbox")["claim_fair"] }

// GiveUpSearches has each claim in order per key give up its search for due rows after one statement.
func GiveUpSearches(s dispatcher.Store) { s.(*Store).searchFor = 0 }
