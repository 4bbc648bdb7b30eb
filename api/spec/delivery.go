package spec

import (
	"math"
	"strconv"
)

// Delivery says how events are claimed, delivered and retried.
type Delivery struct {
	// lease is how long a claim of a row is valid. When a pod is killed, another one
	// takes over its rows after this time. A delivery that takes longer renews its
	// lease. From 3s to 1h. Defaults to 30s.
	// +optional
	// +kubebuilder:default="30s"
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('3s') && duration(self) <= duration('1h')",message="lease must be a duration from 3s to 1h, such as 30s"
	Lease Duration `json:"lease,omitzero"`

	// pollInterval is the longest time between two claims; under load claims are more
	// frequent. At most a third of lease. From 10ms to 20m. Defaults to 1s.
	// +optional
	// +kubebuilder:default="1s"
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('10ms') && duration(self) <= duration('20m')",message="pollInterval must be a duration from 10ms to 20m, such as 1s"
	PollInterval Duration `json:"pollInterval,omitzero"`

	// batchSize is the maximum number of rows of one claim; it is lower while
	// deliveries are slow. From 1 to 10000. Defaults to 2000.
	// +optional
	// +kubebuilder:default=2000
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	BatchSize int32 `json:"batchSize,omitempty"`

	// concurrency is the number of concurrent deliveries of a pod, from 1 to 1000, or
	// Auto. With Auto a pod searches for each topic the number at which the destination
	// takes most events, and keeps to it. Defaults to 16.
	// +optional
	// +kubebuilder:default=16
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 1 && self <= 1000 : self == 'Auto'",message="concurrency must be a number from 1 to 1000, or Auto"
	Concurrency Concurrency `json:"concurrency,omitzero"`

	// maxConcurrency bounds concurrency Auto: the sum over all pods of the dispatcher.
	// Each has an equal part, one at least. From 1 to 1000. Defaults to 256.
	// +optional
	// +kubebuilder:default=256
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	MaxConcurrency int32 `json:"maxConcurrency,omitempty"`

	// rateLimit bounds the events whose delivery begins, retries included, over all
	// pods of the dispatcher: each has an equal part. A new pod waits until the others
	// give a part up, a second or two; the part of a pod that was killed is free after
	// 3 seconds. When not set: no limit.
	// +optional
	RateLimit *RateLimit `json:"rateLimit,omitempty"`

	// topicRateLimits bounds topics in addition, each on its own. When not set: no
	// limit.
	// +optional
	// +listType=map
	// +listMapKey=topic
	// +kubebuilder:validation:MaxItems=256
	TopicRateLimits []TopicRateLimit `json:"topicRateLimits,omitempty"`

	// maxInFlightBytes bounds the bytes of the claimed events in each pod. At the
	// bound no rows are claimed; an event that is larger is dead, and is not read. Raise the
	// pod's memory limit with it, by four bytes for each. From 1048576 (1 MiB) to 17179869184 (16 GiB). The
	// default is 32 MiB. Defaults to 33554432.
	// +optional
	// +kubebuilder:default=33554432
	// +kubebuilder:validation:Minimum=1048576
	// +kubebuilder:validation:Maximum=17179869184
	MaxInFlightBytes int64 `json:"maxInFlightBytes,omitempty"`

	// maxAttempts is the maximum number of deliveries of a row. When the last one
	// fails the row is dead and waits for a person. With the default backoff the
	// default retries a row for 4 to 8 hours. From 1 to 1000. Defaults to 20.
	// +optional
	// +kubebuilder:default=20
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	MaxAttempts int32 `json:"maxAttempts,omitempty"`

	// expireAfter is how long an event is worth sending, from when it is due first,
	// unless its producer has given it a time. An event that is claimed later becomes
	// expired, and is not sent. From 1s to 8760h. When not set: for ever.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1s') && duration(self) <= duration('8760h')",message="expireAfter must be a duration from 1s to 8760h, such as 36h"
	ExpireAfter Duration `json:"expireAfter,omitzero"`

	// backoff says how long a row waits after a failed delivery.
	// +optional
	// +kubebuilder:default={strategy: Exponential}
	Backoff Backoff `json:"backoff,omitzero"`

	// ordering is None or Key. With Key, no event of a key (the partition key, else
	// the aggregate id) is delivered before an earlier one of the same key is
	// delivered or dead, whatever the number of pods. A waiting event blocks only its
	// own key; events without a key do not wait. After a change to Key the order is
	// guaranteed when the last pod with the old setting has stopped. Defaults to None.
	// +optional
	// +kubebuilder:default=None
	Ordering Ordering `json:"ordering,omitempty"`

	// tenantRateLimit bounds the events of each tenant of a topic, over all pods of the
	// dispatcher, by the database's clock. It needs fairness Tenant. When not set: no
	// limit.
	// +optional
	TenantRateLimit *RateLimit `json:"tenantRateLimit,omitempty"`

	// fairness is None or Tenant. With Tenant, the tenants of a topic are delivered in
	// turn, so that the events of one hold up none of another; those without a tenant
	// have turns as one more. It needs migration.tenants of the Outbox to be Indexed.
	// Not with ordering Key. Defaults to None.
	// +optional
	// +kubebuilder:default=None
	Fairness Fairness `json:"fairness,omitempty"`

	// onDead is Continue or Block, for ordering Key: whether a dead event blocks the
	// later ones of its key. With Continue they are delivered; with Block they wait
	// until a person replays or discards it. Defaults to Continue.
	// +optional
	// +kubebuilder:default=Continue
	OnDead OnDead `json:"onDead,omitempty"`

	// wakeUp is None or Listen. With Listen, a pod also listens for the notifications
	// that producers send after their commit, and claims without waiting for
	// pollInterval. It needs producers that send them, and one more connection for
	// each pod, which must not go through PgBouncer in transaction mode. pollInterval
	// applies when no notification arrives. Defaults to None.
	// +optional
	// +kubebuilder:default=None
	WakeUp WakeUp `json:"wakeUp,omitempty"`

	// timeout bounds one delivery, which then fails. At least as long as the
	// sink's own timeout. From 1s to 1h. Defaults to 5m.
	// +optional
	// +kubebuilder:default="5m"
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1s') && duration(self) <= duration('1h')",message="timeout must be a duration from 1s to 1h, such as 5m"
	Timeout Duration `json:"timeout,omitzero"`

	// gracePeriod is how long a stopping pod waits for deliveries in flight. From 1s
	// to 1h. Defaults to 30s.
	// +optional
	// +kubebuilder:default="30s"
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1s') && duration(self) <= duration('1h')",message="gracePeriod must be a duration from 1s to 1h, such as 30s"
	GracePeriod Duration `json:"gracePeriod,omitzero"`

	// consumerPolicy is Any or Verified. With Verified a topic is paused while the type
	// of its next event has no OutboxConsumer that is Verified and that this
	// dispatcher feeds. The whole topic waits, uses no attempt, and continues when the
	// evidence is registered. Defaults to Any.
	// +optional
	// +kubebuilder:default=Any
	ConsumerPolicy ConsumerPolicy `json:"consumerPolicy,omitempty"`
}

// RateLimited reports whether processes of the dispatcher share a limit.
func (d Delivery) RateLimited() bool { return d.RateLimit != nil || len(d.TopicRateLimits) > 0 }

// Ordering says in which order events are delivered.
// +kubebuilder:validation:Enum=None;Key
type Ordering string

const (
	// OrderingNone lets events overtake each other.
	OrderingNone Ordering = "None"
	// OrderingKey delivers the events of a key one after the other.
	OrderingKey Ordering = "Key"
)

// Fairness says whose events wait for whose.
// +kubebuilder:validation:Enum=None;Tenant
type Fairness string

const (
	// FairnessNone delivers a topic's events about in the order in which they became due.
	FairnessNone Fairness = "None"
	// FairnessTenant delivers the tenants of a topic in turn.
	FairnessTenant Fairness = "Tenant"
)

// OnDead says whether a dead event blocks the later ones of its key.
// +kubebuilder:validation:Enum=Continue;Block
type OnDead string

const (
	// OnDeadContinue delivers the key's next event.
	OnDeadContinue OnDead = "Continue"
	// OnDeadBlock waits until a person replays or discards the dead event.
	OnDeadBlock OnDead = "Block"
)

// WakeUp says whether pods listen for producers.
// +kubebuilder:validation:Enum=None;Listen
type WakeUp string

const (
	// WakeUpNone polls every pollInterval.
	WakeUpNone WakeUp = "None"
	// WakeUpListen also listens for producers' notifications.
	WakeUpListen WakeUp = "Listen"
)

// ConsumerPolicy says which consumers an event needs to be delivered.
// +kubebuilder:validation:Enum=Any;Verified
type ConsumerPolicy string

const (
	// ConsumersAny delivers every event.
	ConsumersAny ConsumerPolicy = "Any"
	// ConsumersVerified delivers events of types that a verified consumer registers.
	ConsumersVerified ConsumerPolicy = "Verified"
)

// RateLimit is a number of events in a period, over which they are spread evenly.
type RateLimit struct {
	// events is how many. From 1 to 1000000.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	Events int32 `json:"events,omitempty"`

	// period is the time. From 1s to 24h. Defaults to 1s.
	// +optional
	// +kubebuilder:default="1s"
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1s') && duration(self) <= duration('24h')",message="period must be a duration from 1s to 24h, such as 1m"
	Period Duration `json:"period,omitzero"`
}

// TopicRateLimit is the limit of one topic.
type TopicRateLimit struct {
	// topic is its name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	Topic string `json:"topic,omitempty"`

	// events is how many. From 1 to 1000000.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	Events int32 `json:"events,omitempty"`

	// period is the time. From 1s to 24h. When not set: 1s.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1s') && duration(self) <= duration('24h')",message="period must be a duration from 1s to 24h, such as 1m"
	Period Duration `json:"period,omitzero"`
}

// Backoff says how long a row waits after a failed delivery.
//
// +kubebuilder:validation:XValidation:rule="![has(self.base) ? self.base : '1s', has(self.max) ? self.max : '1s'].all(d, d.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$')) || duration(has(self.base) ? self.base : self.strategy == 'Linear' ? '60s' : '1s') <= duration(has(self.max) ? self.max : '1h')",fieldPath=".base",message="base must be at most max; lower base or raise max (when not set base is 1s, for Linear 60s, and max 1h)"
// +kubebuilder:validation:XValidation:rule="self.strategy == 'Multiplier' || (!has(self.multiplier) && !has(self.jitterPercent))",fieldPath=".strategy",message="multiplier and jitterPercent belong to strategy Multiplier; set it, or remove them"
// +kubebuilder:validation:XValidation:rule="self.strategy != 'PowerOfTwo' || (!has(self.base) && !has(self.max))",fieldPath=".strategy",message="strategy PowerOfTwo has fixed delays; remove base and max, or choose Exponential"
type Backoff struct {
	// strategy is how the delay d grows with the number of attempts n.
	// Exponential: d = min(base * 2^(n-1), max), then uniform between d/2 and d.
	// Multiplier: d = min(base * multiplier^(n-1), max), +/- jitterPercent.
	// PowerOfTwo: d = 2^min(n-1, 10) seconds.
	// Linear: d = min(base * n, max).
	// Defaults to Exponential.
	// +optional
	// +kubebuilder:default=Exponential
	Strategy BackoffStrategy `json:"strategy,omitempty"`

	// base is the first delay. From 1ms to 24h. When not set: 1s; for Linear, 60s.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1ms') && duration(self) <= duration('24h')",message="base must be a duration from 1ms to 24h, such as 1s"
	Base Duration `json:"base,omitzero"`

	// max bounds the delay, before jitter. From 1ms to 24h. When not set: 1h.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1ms') && duration(self) <= duration('24h')",message="max must be a duration from 1ms to 24h, such as 1h"
	Max Duration `json:"max,omitzero"`

	// multiplier is the growth of strategy Multiplier, a decimal from "1" to "10".
	// When not set: "2".
	// +optional
	// +kubebuilder:validation:MaxLength=8
	// +kubebuilder:validation:XValidation:rule="self.matches('^([1-9]([.][0-9]+)?|10([.]0+)?)$')",message="multiplier must be a decimal from \"1\" to \"10\" in quotes, such as \"2\" or \"1.5\""
	Multiplier string `json:"multiplier,omitempty"`

	// jitterPercent is the spread of strategy Multiplier to either side, in percent of
	// the delay. From 0 to 100. When not set: 25.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	JitterPercent *int32 `json:"jitterPercent,omitempty"`
}

// BackoffStrategy is how the delay between attempts grows.
// +kubebuilder:validation:Enum=Exponential;Multiplier;PowerOfTwo;Linear
type BackoffStrategy string

const (
	// BackoffExponential doubles, with equal jitter.
	BackoffExponential BackoffStrategy = "Exponential"
	// BackoffMultiplier grows by a chosen factor, with symmetric jitter.
	BackoffMultiplier BackoffStrategy = "Multiplier"
	// BackoffPowerOfTwo doubles from 1 second up to 1024, without jitter.
	BackoffPowerOfTwo BackoffStrategy = "PowerOfTwo"
	// BackoffLinear grows by base each time, without jitter.
	BackoffLinear BackoffStrategy = "Linear"
)

// Objective is how fresh events must be.
type Objective struct {
	// freshness is the time within which an event is to be delivered, from when it is
	// due first. From 1s to 168h. Defaults to 5m.
	// +optional
	// +kubebuilder:default="5m"
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1s') && duration(self) <= duration('168h')",message="freshness must be a duration from 1s to 168h, such as 60s"
	Freshness Duration `json:"freshness,omitzero"`

	// target is the percentage of the time in which no event is older than freshness,
	// a decimal from "90" to "99.95". Defaults to 99.9.
	// +optional
	// +kubebuilder:default="99.9"
	// +kubebuilder:validation:MaxLength=5
	// +kubebuilder:validation:XValidation:rule="self.matches('^9[0-9]([.][0-9]{1,2})?$') && double(self) <= 99.95",message="target must be a decimal from \"90\" to \"99.95\" in quotes, such as \"99.9\""
	Target string `json:"target,omitempty"`
}

// Ratio is target as a number from 0 to 1, and 0 for one that is not set.
func (o Objective) Ratio() float64 {
	percent, _ := strconv.ParseFloat(o.Target, 64) // its rule lets no other text pass
	return math.Round(percent*100) / 10_000
}
