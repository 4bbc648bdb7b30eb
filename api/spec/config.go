// Package spec is the word between the two planes: the file that the controller renders and
// that `dispatcher run -f FILE` loads. A user without Kubernetes writes it by hand.
//
// It is plain data. Secrets are never in it: it names the files that hold them. Its names, units,
// bounds and defaults are the OutboxDispatcher resource's. [Load] reads it and fills in the
// defaults; [Config.Validate] checks it.
//
//	name: orders
//	namespace: shop
//	database:
//	  dsnFile: /etc/outbox/dsn
//	sink:
//	  http:
//	    url: https://orders.example.com/events
package spec

import "time"

// Config is one dispatcher.
type Config struct {
	// Name identifies the dispatcher in logs and metrics. Required.
	Name string `json:"name"`
	// Namespace is the outbox namespace whose events are delivered, 1 to 255 characters. Required.
	Namespace string `json:"namespace"`
	// Topics to deliver, at most 256. None means all of the namespace.
	Topics []string `json:"topics,omitempty"`
	// Database holds the outbox. Required.
	Database Database `json:"database"`
	// Delivery says how events are claimed, delivered and retried.
	Delivery Delivery `json:"delivery,omitzero"`
	// Notify is the address that is notified of each dead letter. Defaults to none.
	Notify *Notify `json:"notify,omitempty"`
	// Retention says how long rows are kept.
	Retention Retention `json:"retention,omitzero"`
	// Journal says whether changes of rows are recorded. Defaults to what the database has, which is off in a new one.
	Journal *Journal `json:"journal,omitempty"`
	// State is Running or Paused; a paused dispatcher claims nothing and still reports.
	// Defaults to Running.
	State State `json:"state,omitempty"`
	// StateFile is the file that holds Running or Paused. It is read again each second, so that a pause needs
	// no restart. It overrides state, which holds until the file has said one of them. Defaults to none.
	StateFile string `json:"stateFile,omitempty"`
	// VerifiedTypesFile is the file that lists the event types which are delivered, one a line, each as it is or the
	// beginning of some with * at its end: those with a verified consumer (CONTRACT C-82). It is read again each
	// second. An event of another type pauses its topic until the file lists the type. Nothing is delivered before the
	// file could be read once; what it said last holds when it cannot be read later. Defaults to none: all types are
	// delivered.
	VerifiedTypesFile string `json:"verifiedTypesFile,omitempty"`
	// NeedsVerifiedTypes is true when the consumerPolicy of an OutboxDispatcher is Verified, which VerifiedTypesFile serves.
	NeedsVerifiedTypes bool `json:"-"`
	// Sink is where events go. Exactly one member must be set.
	Sink Sink `json:"sink"`
	// Message says what an event becomes on its way to the sink.
	Message Message `json:"message,omitzero"`
	// Server is the port for health, metrics and status.
	Server Server `json:"server,omitzero"`
	// Log says what to log.
	Log Log `json:"log,omitzero"`
}

// Delivery says how events are claimed, delivered and retried.
type Delivery struct {
	// Lease is how long a claimed row is held, 3s to 1h. Defaults to 30s.
	Lease Duration `json:"lease,omitempty"`
	// PollInterval is the longest wait between two looks for work, 10ms to 20m, and at most lease / 3
	// (CONTRACT C-28). Defaults to 1s.
	PollInterval Duration `json:"pollInterval,omitempty"`
	// BatchSize is the most rows that one claim takes, 1 to 10000; a claim takes fewer while deliveries
	// are slow. Defaults to 500.
	BatchSize int `json:"batchSize,omitempty"`
	// Concurrency is how many deliveries run at once, 1 to 1000, or Auto: then each topic finds how many deliver the most
	// (CONTRACT C-38). Defaults to 16.
	Concurrency Concurrency `json:"concurrency,omitempty"`
	// MaxConcurrency bounds concurrency Auto, 1 to 1000: the sum over all processes of the dispatcher that run, of which
	// each has one at least. Defaults to 256.
	MaxConcurrency int `json:"maxConcurrency,omitempty"`
	// RateLimit bounds how fast deliveries of events begin, retries too, over all processes of this dispatcher
	// (CONTRACT C-36). Defaults to no limit.
	RateLimit *RateLimit `json:"rateLimit,omitempty"`
	// TopicRateLimits bounds topics in addition, each on its own, at most 256. Defaults to none.
	TopicRateLimits []TopicRateLimit `json:"topicRateLimits,omitempty"`
	// MaxInFlightBytes bounds the bytes of the events in this process, claimed and not yet written back:
	// 1048576 (1 MiB) to 17179869184 (16 GiB). While it is reached nothing is claimed; an event that is
	// larger is dead, and is not read (CONTRACT C-35). Defaults to 33554432 (32 MiB).
	MaxInFlightBytes int64 `json:"maxInFlightBytes,omitempty"`
	// MaxAttempts is the total of deliveries that a row may begin, 1 to 1000. With the default backoff the
	// default tries a row for 4 to 8 hours. Defaults to 20.
	MaxAttempts int `json:"maxAttempts,omitempty"`
	// Backoff is the policy of retries.
	Backoff Backoff `json:"backoff,omitzero"`
	// Ordering is None or Key: with Key, no event of a key (the partition key, else the aggregate id)
	// is delivered before an earlier one of the same key is delivered or dead (CONTRACT C-50).
	// Defaults to None.
	Ordering Ordering `json:"ordering,omitempty"`
	// TenantRateLimit bounds how fast each tenant of a topic is delivered, over all processes of this dispatcher (CONTRACT
	// C-51). It needs fairness Tenant. Defaults to no limit.
	TenantRateLimit *RateLimit `json:"tenantRateLimit,omitempty"`
	// Fairness is None or Tenant: with Tenant, the tenants of a topic are delivered in turn (CONTRACT C-37), the events
	// without one as those of one more. It needs an index: see database.tenants. Not with ordering Key. Defaults to None.
	Fairness Fairness `json:"fairness,omitempty"`
	// OnDead is Continue or Block, for ordering Key: with Block, a key waits behind its dead event
	// until a person replays or discards it. Defaults to Continue.
	OnDead OnDead `json:"onDead,omitempty"`
	// WakeUp is None or Listen: with Listen, the dispatcher also listens for the wake-ups that
	// producers send after their commit, and does not wait for pollInterval. It needs producers that
	// send them, and a connection of its own that must not go through PgBouncer in transaction mode.
	// Without wake-ups, or when they get lost, pollInterval holds. Defaults to None.
	WakeUp WakeUp `json:"wakeUp,omitempty"`
	// Timeout is how long one delivery may take, 1s to 1h; it is a failed one then (CONTRACT
	// C-34). At least as long as the sink's own timeout. Defaults to 5m.
	Timeout Duration `json:"timeout,omitempty"`
	// GracePeriod is how long deliveries in flight may take after SIGTERM, 1s to 1h. Defaults to 30s.
	GracePeriod Duration `json:"gracePeriod,omitempty"`
}

// State says whether a dispatcher claims.
type State string

// Values of [State].
const (
	Running State = "Running"
	Paused  State = "Paused"
)

// Ordering says in which order events are delivered.
type Ordering string

// Values of [Ordering].
const (
	OrderingNone Ordering = "None"
	OrderingKey  Ordering = "Key"
)

// Fairness says whose events wait for whose.
type Fairness string

// Values of [Fairness].
const (
	FairnessNone   Fairness = "None"
	FairnessTenant Fairness = "Tenant"
)

// OnDead says what a dead event means for the later ones of its key.
type OnDead string

// Values of [OnDead].
const (
	OnDeadContinue OnDead = "Continue"
	OnDeadBlock    OnDead = "Block"
)

// WakeUp says whether a dispatcher listens for producers.
type WakeUp string

// Values of [WakeUp].
const (
	WakeUpNone   WakeUp = "None"
	WakeUpListen WakeUp = "Listen"
)

// Database says how to reach the outbox. Exactly one of DSN, DSNFile and Connection must be set. Of
// several hosts the one that takes writes is used, also after a failover.
type Database struct {
	// DSN is a connection string, for trying things out. Keep passwords out of it: use DSNFile.
	DSN string `json:"dsn,omitempty"`
	// DSNFile holds a connection string (URL or key=value).
	DSNFile string `json:"dsnFile,omitempty"`
	// DSNEnv names an environment variable that holds one, such as DATABASE_URL.
	DSNEnv string `json:"dsnEnv,omitempty"`
	// Connection names one file for each part.
	Connection *Connection `json:"connection,omitempty"`
	// Schema is the PostgreSQL schema of the outbox tables: lower-case alphanumeric
	// characters and underscores. Defaults to outbox.
	Schema string `json:"schema,omitempty"`
	// SSLMode is Disable, Prefer, Require, VerifyCA or VerifyFull: libpq's sslmode. It overrides the DSN's.
	// Defaults to VerifyFull when caFile is set, else to what the DSN says.
	SSLMode string `json:"sslMode,omitempty"`
	// CAFile holds the PEM certificates that the server's certificate is checked against, in the
	// modes VerifyCA and VerifyFull, which need it.
	CAFile string `json:"caFile,omitempty"`
	// ClientCertFile and ClientKeyFile are the certificate that the login shows, and its key, both or
	// neither. They are read for each connection.
	ClientCertFile string `json:"clientCertFile,omitempty"`
	ClientKeyFile  string `json:"clientKeyFile,omitempty"`
	// IAM makes the password of each connection from the identity that the process has in a cloud.
	// Defaults to none.
	IAM *IAM `json:"iam,omitempty"`
	// M10 makes `dispatcher migrate up` install what workers of the M10 outbox contract call. Dispatchers
	// ignore it. Defaults to none.
	M10 *M10 `json:"m10,omitempty"`
	// Overview makes `dispatcher migrate up` make the view outbox.events, on which producers of the Overview outbox
	// contract insert. Dispatchers ignore it. Defaults to none.
	Overview *Overview `json:"overview,omitempty"`
	// Tenants is Indexed to make `dispatcher migrate up` make the index that delivery.fairness needs. It stays when this is
	// removed. Dispatchers ignore it. Defaults to none.
	Tenants Tenants `json:"tenants,omitempty"`
}

// Tenants says what the database has for fairness.
type Tenants string

// TenantsIndexed is an index of the events that wait, by tenant.
const TenantsIndexed Tenants = "Indexed"

// Overview says which events the view outbox.events is about.
type Overview struct {
	// Namespace of the events, 1 to 255 characters without quotes, backslashes, dollar signs and control characters.
	// Required.
	Namespace string `json:"namespace"`
}

// M10 says which events the functions in the PostgreSQL schema m10_recovery are about. Namespace and topic have no
// quotes, backslashes, dollar signs and control characters.
type M10 struct {
	// Namespace of the events that workers claim and publish, 1 to 255 characters. Required.
	Namespace string `json:"namespace"`
	// Topic of these events, 1 to 255 characters. Defaults to m10.
	Topic string `json:"topic,omitempty"`
	// Publish is Insert or Upsert: with Upsert, publish_outbox replaces the payload of an event of the same
	// aggregate and type that no worker has claimed yet. Defaults to Insert.
	Publish M10Publish `json:"publish,omitempty"`
}

// M10Publish says what publish_outbox does.
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
type Connection struct {
	Host         string `json:"host,omitempty"`
	HostFile     string `json:"hostFile,omitempty"`
	Port         int    `json:"port,omitempty"`
	PortFile     string `json:"portFile,omitempty"`
	Database     string `json:"database,omitempty"`
	DatabaseFile string `json:"databaseFile,omitempty"`
	User         string `json:"user,omitempty"`
	UserFile     string `json:"userFile,omitempty"`
	PasswordFile string `json:"passwordFile,omitempty"`
}

// IAM is a login with the identity that the process has in a cloud: a short-lived token is the password.
type IAM struct {
	// Provider is AWS, Google or Azure. Required.
	Provider string `json:"provider"`
	// Region is the database's region, for AWS. Defaults to the environment's AWS_REGION.
	Region string `json:"region,omitempty"`
}

// The providers of [IAM].
const (
	IAMAWS    = "AWS"
	IAMGoogle = "Google"
	IAMAzure  = "Azure"
)

// The strategies of a [Backoff].
const (
	Exponential = "Exponential"
	Multiplier  = "Multiplier"
	PowerOfTwo  = "PowerOfTwo"
	Linear      = "Linear"
)

// Backoff is the policy of retries (CONTRACT C-25).
type Backoff struct {
	// Strategy is Exponential, Multiplier, PowerOfTwo or Linear. Defaults to Exponential.
	//   Exponential: d = min(base * 2^(attempts-1), max), then uniform in [d/2, d].
	//   Multiplier:  d = min(base * multiplier^(attempts-1), max), then ± jitter percent.
	//   PowerOfTwo:  2^min(attempts-1, 10) seconds, no jitter.
	//   Linear:      base * attempts, at most max, no jitter.
	Strategy string `json:"strategy,omitempty"`
	// Base is the first delay, 1ms to 24h and at most max. Defaults to 1s, and to 60s for Linear.
	// Base and max are not for PowerOfTwo.
	Base Duration `json:"base,omitempty"`
	// Max bounds the delay before jitter, 1ms to 24h. Defaults to 1h.
	Max Duration `json:"max,omitempty"`
	// Multiplier is the factor of strategy Multiplier, such as "1.5": from "1" to "10". Defaults to "2".
	Multiplier string `json:"multiplier,omitempty"`
	// JitterPercent is the spread of strategy Multiplier, 0 to 100. Defaults to 25.
	JitterPercent *int `json:"jitterPercent,omitempty"`
}

// Server is the port for health, metrics and status.
type Server struct {
	// Address is host:port. Defaults to 127.0.0.1:8080; the operator sets :8080.
	Address string `json:"address,omitempty"`
}

// Log says what to log.
type Log struct {
	// Level is the least that is logged: Debug (also each failed delivery), Info, Warn or Error.
	// Defaults to Info.
	Level string `json:"level,omitempty"`
}

// The defaults of a dispatcher's settings: of the file, of the OutboxDispatcher resource (a test compares them), and of
// the engine's Config.
const (
	DefaultLease          = 30 * time.Second
	DefaultPollInterval   = time.Second
	DefaultBatchSize      = 500
	DefaultConcurrency    = 16
	DefaultMaxConcurrency = 256
	// DefaultMaxAttempts and the default backoff together try a row for 4 to 8 hours, by chance, before it is
	// dead: longer than most incidents of a destination last (CONTRACT C-32).
	DefaultMaxAttempts     = 20
	DefaultBackoffBase     = time.Second
	DefaultBackoffMax      = time.Hour
	DefaultDeliveryTimeout = 5 * time.Minute
	DefaultGracePeriod     = 30 * time.Second
	DefaultMaxBytes        = 32 << 20
)
