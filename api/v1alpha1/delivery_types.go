package v1alpha1

import (
	"github.com/outbox-operator/outbox-operator/api/spec"
)

// Delivery says how events are claimed, delivered and retried.
type Delivery struct {
	// lease is how long a claim of a row is valid. When a pod is killed, another one
	// takes over its rows after this time. A delivery that takes longer renews its
	// lease. From 3s to 1h. Defaults to 30s.
	// +optional
	// +kubebuilder:default="30s"
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('3s') && duration(self) <= duration('1h')",message="lease must be a duration from 3s to 1h, such as 30s"
	Lease spec.Duration `json:"lease,omitzero"`

	// pollInterval is the longest time between two claims; under load claims are more
	// frequent. At most a third of lease. From 10ms to 20m. Defaults to 1s.
	// +optional
	// +kubebuilder:default="1s"
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('10ms') && duration(self) <= duration('20m')",message="pollInterval must be a duration from 10ms to 20m, such as 1s"
	PollInterval spec.Duration `json:"pollInterval,omitzero"`

	// batchSize is the maximum number of rows of one claim; it is lower while
	// deliveries are slow. From 1 to 10000. Defaults to 500.
	// +optional
	// +kubebuilder:default=500
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
	Concurrency spec.Concurrency `json:"concurrency,omitzero"`

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
	// pod's memory limit with it. From 1048576 (1 MiB) to 17179869184 (16 GiB). The
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
	Timeout spec.Duration `json:"timeout,omitzero"`

	// gracePeriod is how long a stopping pod waits for deliveries in flight. From 1s
	// to 1h. Defaults to 30s.
	// +optional
	// +kubebuilder:default="30s"
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1s') && duration(self) <= duration('1h')",message="gracePeriod must be a duration from 1s to 1h, such as 30s"
	GracePeriod spec.Duration `json:"gracePeriod,omitzero"`

	// consumerPolicy is Any or Verified. With Verified a topic is paused while the type
	// of its next event has no OutboxConsumer that is Verified and that this
	// dispatcher feeds. The whole topic waits, uses no attempt, and continues when the
	// evidence is registered. Defaults to Any.
	// +optional
	// +kubebuilder:default=Any
	ConsumerPolicy ConsumerPolicy `json:"consumerPolicy,omitempty"`
}

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
	Period spec.Duration `json:"period,omitzero"`
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

	// period is the time. From 1s to 24h. Defaults to 1s.
	// +optional
	// +kubebuilder:default="1s"
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1s') && duration(self) <= duration('24h')",message="period must be a duration from 1s to 24h, such as 1m"
	Period spec.Duration `json:"period,omitzero"`
}
