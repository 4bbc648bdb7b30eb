// Package spec is what an OutboxDispatcher, an Outbox and what they refer to say, as plain data: the fields of the objects, with
// the rules, bounds and defaults that the API server holds them to. A process reads the same objects from a file.
//
// Secrets are never in it: it names the keys that hold them. A process finds these as files, whose paths [Objects.Config] sets.
//
// +kubebuilder:object:generate=true
package spec

// Config is what a process runs with: the objects, and what is only the process's.
//
// +kubebuilder:object:generate=false
type Config struct {
	// Name identifies the dispatcher in logs and metrics. Required.
	Name string
	// Dispatcher is the spec of the OutboxDispatcher.
	Dispatcher
	// Database is how to reach the outbox. Required.
	Database Database
	// Notify, Retention and Journal are the Outbox's.
	Notify    *Notify
	Retention Retention
	Journal   *Journal
	// StateFile is the file that holds Running or Paused. It is read again each second, so that a pause needs
	// no restart. It overrides state, which holds until the file has said one of them. Defaults to none.
	StateFile string
	// VerifiedTypesFile is the file that lists the event types which are delivered, one a line, each as it is or the
	// beginning of some with * at its end: those with a verified consumer (CONTRACT C-82). It is read again each
	// second. An event of another type pauses its topic until the file lists the type. Nothing is delivered before the
	// file could be read once; what it said last holds when it cannot be read later. Defaults to none: all types are
	// delivered.
	VerifiedTypesFile string
}

// Delivery says how events are claimed, delivered and retried.
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

// State says whether a dispatcher claims rows. A rule takes a row less of `kubectl explain` than an enum, and
// the field's own words name the values.
//
// +kubebuilder:validation:MaxLength=16
// +kubebuilder:validation:XValidation:rule="self in ['Running', 'Paused']",message="state must be Running or Paused"
type State string

// Values of [State].
const (
	Running State = "Running"
	Paused  State = "Paused"
)

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

// Database says how to reach the outbox. Exactly one of DSN, DSNFile and Connection must be set. Of
// several hosts the one that takes writes is used, also after a failover.
//
// +kubebuilder:object:generate=false
type Database struct {
	// DSN is a connection string, for trying things out. Keep passwords out of it: use DSNFile.
	DSN string
	// DSNFile holds a connection string (URL or key=value).
	DSNFile string
	// DSNEnv names an environment variable that holds one, such as DATABASE_URL.
	DSNEnv string
	// Connection names one file for each part.
	Connection *Connection
	// Schema is the PostgreSQL schema of the outbox tables: lower-case alphanumeric
	// characters and underscores. Defaults to outbox.
	Schema string
	// SSLMode is Disable, Prefer, Require, VerifyCA or VerifyFull: libpq's sslmode. It overrides the DSN's.
	// Defaults to VerifyFull when caFile is set, else to what the DSN says.
	SSLMode string
	// CAFile holds the PEM certificates that the server's certificate is checked against, in the
	// modes VerifyCA and VerifyFull, which need it.
	CAFile string
	// ClientCertFile and ClientKeyFile are the certificate that the login shows, and its key, both or
	// neither. They are read for each connection.
	ClientCertFile string
	ClientKeyFile  string
	// IAM makes the password of each connection from the identity that the process has in a cloud.
	// Defaults to none.
	IAM *IAM
	// M10 makes `dispatcher migrate up` install what workers of the M10 outbox contract call. Dispatchers
	// ignore it. Defaults to none.
	M10 *M10
	// Overview makes `dispatcher migrate up` make the view outbox.events, on which producers of the Overview outbox
	// contract insert. Dispatchers ignore it. Defaults to none.
	Overview *Overview
	// Tenants is Indexed to make `dispatcher migrate up` make the index that delivery.fairness needs. It stays when this is
	// removed. Dispatchers ignore it. Defaults to none.
	Tenants Tenants
}

// Tenants says what the database has for fairness.
// +kubebuilder:validation:Enum=Indexed
type Tenants string

// TenantsIndexed is an index of the events that wait, by tenant.
const TenantsIndexed Tenants = "Indexed"

// Overview configures the view outbox.events.
type Overview struct {
	// namespace is the outbox namespace of the events.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="self.matches('^[^\\\\x27\\\\x5c$[:cntrl:]]*$')",message="namespace must not have quotes, backslashes, dollar signs or control characters, because it stands in the text of SQL functions; choose another name"
	Namespace string `json:"namespace,omitempty"`
}

// M10 configures the functions of the M10 outbox contract.
type M10 struct {
	// namespace is the outbox namespace of the events that M10 workers claim and
	// publish.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="self.matches('^[^\\\\x27\\\\x5c$[:cntrl:]]*$')",message="namespace must not have quotes, backslashes, dollar signs or control characters, because it stands in the text of SQL functions; choose another name"
	Namespace string `json:"namespace,omitempty"`

	// topic is the topic of these events. Defaults to m10.
	// +optional
	// +kubebuilder:default=m10
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="self.matches('^[^\\\\x27\\\\x5c$[:cntrl:]]*$')",message="topic must not have quotes, backslashes, dollar signs or control characters, because it stands in the text of SQL functions; choose another name"
	Topic string `json:"topic,omitempty"`

	// publish is Insert (publish_outbox adds an event) or Upsert (it replaces the
	// payload of an event of the same aggregate and type that no worker has claimed
	// yet, else it adds one).
	// Defaults to Insert.
	// +optional
	// +kubebuilder:default=Insert
	Publish M10Publish `json:"publish,omitempty"`
}

// M10Publish says what publish_outbox does.
// +kubebuilder:validation:Enum=Insert;Upsert
type M10Publish string

// Values of [M10Publish].
const (
	M10Insert M10Publish = "Insert"
	M10Upsert M10Publish = "Upsert"
)

// Connection is the parts of a connection: as they are, or in files, as a mounted Secret has them. Each of
// host, database and user is one or the other. The password is only in a file, and not needed with
// an IAM login or a client's certificate. The port defaults to 5432. Several hosts are separated by
// commas, with one port or as many: see [Database].
//
// +kubebuilder:object:generate=false
type Connection struct {
	Host         string
	HostFile     string
	Port         int
	PortFile     string
	Database     string
	DatabaseFile string
	User         string
	UserFile     string
	PasswordFile string
}

// IAM is a login with the pod's identity in a cloud.
//
// +kubebuilder:validation:XValidation:rule="!has(self.region) || self.provider == 'AWS'",fieldPath=".region",message="region belongs to provider AWS; remove it"
type IAM struct {
	// provider is AWS, Google or Azure.
	// +required
	// +kubebuilder:validation:Enum=AWS;Google;Azure
	Provider string `json:"provider,omitempty"`

	// region is the region of the database, for AWS. When not set: AWS_REGION in the
	// environment of the pods.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z]{2,4}(-[a-z]+)+-[0-9]+$')",message="region must be the name of a region, such as eu-west-1"
	Region string `json:"region,omitempty"`
}

// The providers of [IAM].
const (
	IAMAWS    = "AWS"
	IAMGoogle = "Google"
	IAMAzure  = "Azure"
)

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

// Log says what the pods log. No level logs a payload or a secret.
type Log struct {
	// level is the lowest level that is logged: Debug (also each failed delivery),
	// Info, Warn (what a person should see, such as a dead event) or Error. A change
	// rolls the pods. Defaults to Info.
	// +optional
	// +kubebuilder:default=Info
	Level LogLevel `json:"level,omitempty"`
}
