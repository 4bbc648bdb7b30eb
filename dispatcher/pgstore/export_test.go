package pgstore

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
