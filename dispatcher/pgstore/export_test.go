package pgstore

// Settings are those that hot statements run with.
const Settings = relaxed

// ClaimSQL is the claim statement of a store in schema "outbox".
func ClaimSQL() string { return load("outbox").claim }

// AckSQL is the ack statement of a store in schema "outbox".
func AckSQL() string { return load("outbox").ack }

// FullPass is how often a claim starts at the front of a topic's range.
const FullPass = fullPass

// ClaimKeyedSQL is the statement that claims in order per key, of a store in schema "outbox".
func ClaimKeyedSQL() string { return load("outbox").claimKeyed }
