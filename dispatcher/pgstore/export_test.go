package pgstore

import (
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// Settings are those that hot statements run with.
const Settings = relaxed

// ClaimSQL is the claim statement of a store in schema "outbox".
func ClaimSQL() string { return load("outbox").claim }

// ClaimFewSQL is its counterpart for a few rows.
func ClaimFewSQL() string { return load("outbox").claimFew }

// AckSQL is the ack statement of a store in schema "outbox".
func AckSQL() string { return load("outbox").ack }

// FullPass is how often a claim starts at the front of a topic's range.
const FullPass = fullPass

// ClaimKeyedSQL is the statement that claims in order per key, of a store in schema "outbox".
func ClaimKeyedSQL() string { return load("outbox").claimKeyed }

// ClaimDenseSQL is its counterpart where nearly each row is the first of its key.
func ClaimDenseSQL() string { return load("outbox").claimDense }

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
