package dispatcher

// LimitedBy says what keeps a topic, or a dispatcher, from delivering more than it does now. It is what held most of
// the time in the last seconds. It is empty until that is known, and while nothing is claimed because the dispatcher
// is paused, draining or not running.
type LimitedBy string

// What may limit. A dispatcher is limited by the first of these that limits one of its topics.
const (
	// LimitedByConcurrency: all calls of the sink that may run at once are running, and events wait for one. More
	// concurrency or another process delivers more.
	LimitedByConcurrency LimitedBy = "Concurrency"
	// LimitedByDatabase: calls of the sink wait for claims, or outcomes wait to be written back; or the database is
	// unreachable, its schema is not ready, or it refuses the topic's claims or outcomes; or the process has no part of the
	// rate limits.
	LimitedByDatabase LimitedBy = "Database"
	// LimitedByRate: a rate limit of the configuration is used up: the dispatcher's, the topic's, or that of a tenant with
	// due events.
	LimitedByRate LimitedBy = "Rate"
	// LimitedByDestination: the destination takes no more. It is unreachable, refuses every event, requested a pause,
	// or more calls at once do not deliver more.
	LimitedByDestination LimitedBy = "Destination"
	// LimitedByOrder: with OrderingKey, the events that are due wait for earlier ones of their keys.
	LimitedByOrder LimitedBy = "Order"
	// LimitedByConsumer: the type of the next event is not admitted: see Admit of package engine.
	LimitedByConsumer LimitedBy = "Consumer"
	// LimitedByIdle: there is nothing to do: what is due is delivered at once.
	LimitedByIdle LimitedBy = "Idle"
)

// TopicLimit is what limits a topic.
type TopicLimit struct {
	Topic string
	// LimitedBy is never empty, and never Idle.
	LimitedBy LimitedBy
	// Concurrency is how many calls of the sink the topic may have at once in this process.
	Concurrency int
}

// TopicLimitsListed is the most topics in [Snapshot.TopicLimits].
const TopicLimitsListed = 8
