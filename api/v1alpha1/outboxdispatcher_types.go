package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// OutboxDispatcher delivers the events of one namespace of a transactional outbox to one sink. The operator runs a
// Deployment of dispatchers for it and reports their state here.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=obd,categories=outbox-operator
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.replicas,selectorpath=.status.selector
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Pending",type=integer,JSONPath=`.status.pending`,description="Rows due now; an estimate above 10,000"
// +kubebuilder:printcolumn:name="Dead",type=integer,JSONPath=`.status.dead`,description="Unresolved dead rows"
// +kubebuilder:printcolumn:name="Oldest",type=date,JSONPath=`.status.oldestPending`,description="Age of the pending row that is due first"
// +kubebuilder:printcolumn:name="Estimated",type=boolean,JSONPath=`.status.estimated`,description="Whether a count is an estimate, as one above 10,000 is"
// +kubebuilder:printcolumn:name="Pods",type=string,JSONPath=`.status.pods`,description="Dispatcher pods that are ready, of spec.replicas"
// +kubebuilder:printcolumn:name="Sink",type=string,JSONPath=`.status.sink`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Outbox",type=string,JSONPath=`.spec.namespace`,priority=1,description="The outbox namespace, not the Kubernetes one"
// +kubebuilder:printcolumn:name="Topics",type=string,JSONPath=`.spec.topics`,priority=1,description="Empty means all"
// +kubebuilder:printcolumn:name="Scheduled",type=integer,JSONPath=`.status.scheduled`,priority=1,description="Rows due later; an estimate above 10,000"
// +kubebuilder:printcolumn:name="Processing",type=integer,JSONPath=`.status.processing`,priority=1,description="Rows that dispatchers have claimed"
// +kubebuilder:printcolumn:name="Blocked",type=integer,JSONPath=`.status.blockedKeys`,priority=1,description="Keys that wait behind a dead row, with onDead Block"
// +kubebuilder:printcolumn:name="Observed",type=date,JSONPath=`.status.observedTime`,priority=1,description="Age of the counts; more than 10 minutes means that no pod reports them"
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`,priority=1
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 48 && !self.metadata.name.contains('.')",message="metadata.name must be at most 48 characters without dots, because it becomes part of the names of pods and jobs; choose another name"
type OutboxDispatcher struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec is the desired state.
	// +required
	Spec OutboxDispatcherSpec `json:"spec,omitzero"`

	// status is the observed state.
	// +optional
	// +kubebuilder:default={"observedGeneration":-1}
	Status OutboxDispatcherStatus `json:"status,omitzero"`
}

// OutboxDispatcherList is a list of OutboxDispatchers.
//
// +kubebuilder:object:root=true
type OutboxDispatcherList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitzero"`
	Items           []OutboxDispatcher `json:"items"`
}

// OutboxDispatcherSpec says which events are delivered, where and how.
//
// +kubebuilder:validation:XValidation:rule="has(self.outboxRef) != has(self.database)",message="exactly one of outboxRef and database says where the outbox is; set outboxRef to the name of an Outbox, or database to the connection of this dispatcher alone"
// +kubebuilder:validation:XValidation:rule="![self.lease, self.pollInterval].all(d, d.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$')) || duration(self.pollInterval) + duration(self.pollInterval) + duration(self.pollInterval) <= duration(self.lease)",fieldPath=".pollInterval",message="pollInterval must be at most a third of lease, so that a lost lease is noticed in time; lower pollInterval or raise lease"
// +kubebuilder:validation:XValidation:rule="[self.sink.?timeout.orValue(has(self.sink.log) ? '0s' : has(self.sink.kafka) || has(self.sink.postgres) || has(self.sink.rabbitmq) ? '30s' : '10s')].all(t, ![t, self.deliveryTimeout].all(d, d.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$')) || duration(t) <= duration(self.deliveryTimeout))",fieldPath=".deliveryTimeout",message="deliveryTimeout must be at least as long as sink.timeout, which else never ends a delivery; raise deliveryTimeout, or lower sink.timeout (when not set it is 30s for kafka, postgres and rabbitmq, 10s for the others)"
// +kubebuilder:validation:XValidation:rule="self.onDead != 'Block' || self.ordering == 'Key'",fieldPath=".onDead",message="onDead Block belongs to ordering Key, because without it no event waits for another; set ordering to Key, or remove onDead"
// +kubebuilder:validation:XValidation:rule="!has(self.sink.kafka) || self.sink.kafka.encoding == 'JSON' || has(self.schemaRegistry)",fieldPath=".schemaRegistry",message="schemaRegistry is needed by sink.kafka.encoding Avro and Protobuf; add it, or set encoding to JSON"
// +kubebuilder:validation:XValidation:rule="!has(self.routes) || self.routes.size() == 0 || !(has(self.sink.log) || has(self.sink.postgres))",fieldPath=".routes",message="routes are for sinks that have several destinations, and log and postgres have one; remove routes, or choose another sink"
// +kubebuilder:validation:XValidation:rule="!has(self.routes) || self.routes.map(r, has(r.topics) && r.topics.size() > 0).indexOf(false) in [-1, self.routes.size() - 1]",fieldPath=".routes",message="routes must have the one without topics last, because it takes all that is left; move it to the end"
// +kubebuilder:validation:XValidation:rule="has(self.schemaRegistry) || !has(self.validation) || self.validation.all(v, !has(v.schema) || !has(v.schema.registry))",fieldPath=".schemaRegistry",message="schemaRegistry is needed by validation that names a schema of the registry; add it, or set inline or configMapRef"
// +kubebuilder:validation:XValidation:rule="!has(self.message) || !(has(self.sink.log) || has(self.sink.postgres))",fieldPath=".message",message="message is for sinks whose messages have headers, and those of log and postgres have none; remove message, or choose another sink"
// +kubebuilder:validation:XValidation:rule="!has(self.message) || self.message.format != 'Debezium' || has(self.sink.kafka)",fieldPath=".message.format",message="format Debezium is what its outbox event router writes to Kafka; choose Plain with headers of your own, or the sink kafka"
// +kubebuilder:validation:XValidation:rule="!has(self.message) || self.message.format == 'CloudEvents' || [self.sink.?http.contentMode.orValue('Binary'), self.sink.?kafka.contentMode.orValue('Binary'), self.sink.?nats.contentMode.orValue('Binary'), self.sink.?pubSub.contentMode.orValue('Binary'), self.sink.?rabbitmq.contentMode.orValue('Binary'), self.sink.?redis.contentMode.orValue('Binary'), self.sink.?serviceBus.contentMode.orValue('Binary')].all(mode, mode == 'Binary')",fieldPath=".message.format",message="format must be CloudEvents unless contentMode is Binary, because the payload is the whole body; set contentMode to Binary, or format to CloudEvents"
// +kubebuilder:validation:XValidation:rule="!has(self.message) || !has(self.message.headers) || self.message.headers.size() == 0 || self.sink.?http.contentMode.orValue('Binary') != 'Batch'",fieldPath=".message.headers",message="headers are of one event, and contentMode Batch has several in a request; choose another contentMode, or remove headers"
// +kubebuilder:validation:XValidation:rule="!has(self.message) || !has(self.message.headers) || !(has(self.sink.sqs) || has(self.sink.sns)) || self.message.headers.size() <= (self.message.format == 'CloudEvents' ? 2 : 10)",fieldPath=".message.headers",message="headers must be at most two for sqs and sns with format CloudEvents, and ten with another, because a message has ten attributes; remove some"
type OutboxDispatcherSpec struct {
	// namespace is the outbox namespace whose events are delivered: the namespace
	// column of outbox_events, not a Kubernetes namespace.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	Namespace string `json:"namespace,omitempty"`

	// topics are the topics to deliver. Empty means all topics of the namespace, also
	// those that are added later.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=255
	Topics []string `json:"topics,omitempty"`

	// outboxRef names the Outbox that holds the events. Exactly one of outboxRef and
	// database.
	// +optional
	OutboxRef *OutboxRef `json:"outboxRef,omitempty"`

	// database is the outbox of a dispatcher that does not share it through an Outbox.
	// Exactly one of outboxRef and database.
	// +optional
	Database *DispatcherDatabase `json:"database,omitempty"`

	// sink is the destination of the events.
	// +required
	Sink Sink `json:"sink,omitzero"`

	// routes choose the destination in the sink by topic; the first route that has the
	// topic is used. Not for log and postgres, which have one destination. With
	// routes, the attempts of an event whose topic has no route fail, and the event is
	// dead after maxAttempts. When not set: the sink's own setting, else the name of
	// the topic.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Routes []Route `json:"routes,omitempty"`

	// validation checks payloads by event type, with JSON Schemas and CEL rules. Every
	// entry for the type of an event applies. An invalid event is dead at once.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Validation []Validation `json:"validation,omitempty"`

	// transform changes payloads after their validation, by event type: for data that
	// must not leave the database. Every entry for the type of an event applies, in
	// this order.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Transform []Transformation `json:"transform,omitempty"`

	// message is the format of messages, and headers of your own. Not for log and
	// postgres, whose messages have no headers. When not set: CloudEvents, without
	// headers of your own.
	// +optional
	Message *Message `json:"message,omitempty"`

	// schemaRegistry is the registry of the schemas that encoding and validation name.
	// When not set: none.
	// +optional
	SchemaRegistry *SchemaRegistry `json:"schemaRegistry,omitempty"`

	// lease is how long a claim of a row is valid. When a pod is killed, another one
	// takes over its rows after this time. A delivery that takes longer renews its
	// lease. From 3s to 1h. Defaults to 30s.
	// +optional
	// +kubebuilder:default="30s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('3s') && duration(self) <= duration('1h')",message="lease must be a duration from 3s to 1h, such as 30s"
	Lease metav1.Duration `json:"lease,omitzero"`

	// pollInterval is the longest time between two claims; under load claims are more
	// frequent. At most a third of lease. From 10ms to 20m. Defaults to 1s.
	// +optional
	// +kubebuilder:default="1s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('10ms') && duration(self) <= duration('20m')",message="pollInterval must be a duration from 10ms to 20m, such as 1s"
	PollInterval metav1.Duration `json:"pollInterval,omitzero"`

	// batchSize is the maximum number of rows of one claim; it is lower while
	// deliveries are slow. From 1 to 10000. Defaults to 500.
	// +optional
	// +kubebuilder:default=500
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	BatchSize int32 `json:"batchSize,omitempty"`

	// concurrency is the number of concurrent deliveries of a pod. From 1 to 1000.
	// Defaults to 16.
	// +optional
	// +kubebuilder:default=16
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	Concurrency int32 `json:"concurrency,omitempty"`

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

	// deliveryTimeout bounds one delivery, which then fails. At least as long as the
	// sink's own timeout. From 1s to 1h. Defaults to 5m.
	// +optional
	// +kubebuilder:default="5m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1s') && duration(self) <= duration('1h')",message="deliveryTimeout must be a duration from 1s to 1h, such as 5m"
	DeliveryTimeout metav1.Duration `json:"deliveryTimeout,omitzero"`

	// gracePeriod is how long a stopping pod waits for deliveries in flight. From 1s
	// to 1h. Defaults to 30s.
	// +optional
	// +kubebuilder:default="30s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1s') && duration(self) <= duration('1h')",message="gracePeriod must be a duration from 1s to 1h, such as 30s"
	GracePeriod metav1.Duration `json:"gracePeriod,omitzero"`

	// replicas is the number of dispatcher pods. Each event is delivered by one of
	// them. From 0 to 100. Defaults to 1.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	Replicas *int32 `json:"replicas,omitempty"`

	// state is Running or Paused. Paused dispatchers claim nothing; their pods still
	// run and report the backlog. A change is sent to running pods without a restart,
	// whatever the other conditions. After Paused they continue when all of them run
	// the newest spec, and after two minutes in any case. Defaults to Running.
	// +optional
	// +kubebuilder:default=Running
	State DispatcherState `json:"state,omitempty"`

	// consumerPolicy is Any or Verified. With Verified a topic is paused while the type
	// of its next event has no OutboxConsumer that is Verified and that this
	// dispatcher feeds. The whole topic waits, uses no attempt, and continues when the
	// evidence is registered. Defaults to Any.
	// +optional
	// +kubebuilder:default=Any
	ConsumerPolicy ConsumerPolicy `json:"consumerPolicy,omitempty"`

	// log configures the logs of the pods.
	// +optional
	// +kubebuilder:default={level: Info}
	Log Log `json:"log,omitzero"`

	// serviceAccount is the identity of the pods, to which roles of a cloud are bound.
	// Its API token is not mounted. When not set: an account of their own, named after
	// the object and -dispatcher.
	// +optional
	ServiceAccount *ServiceAccount `json:"serviceAccount,omitempty"`

	// imagePullSecrets name the Secrets for pulling the image, in addition to those of
	// the operator's argument --image-pull-secrets.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	ImagePullSecrets []SecretName `json:"imagePullSecrets,omitempty"`

	// podTemplate is merged (as a strategic merge patch) over the pod template that
	// the operator makes: labels, annotations, resources, affinity, tolerations, env,
	// volumes, sidecars, any field of a pod. The dispatcher's container is named
	// "dispatcher". At most 64 KiB of JSON, and 256 entries in each list. The
	// volumes and mounts of the operator, and the service account, are not changed
	// by it. An invalid one stops no running pod; the condition WorkloadAvailable
	// reports the error.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=object
	PodTemplate *runtime.RawExtension `json:"podTemplate,omitempty"`
}

// DispatcherState says whether a dispatcher claims rows.
// +kubebuilder:validation:Enum=Running;Paused
type DispatcherState string

const (
	// StateRunning dispatchers claim and deliver.
	StateRunning DispatcherState = "Running"
	// StatePaused dispatchers claim nothing.
	StatePaused DispatcherState = "Paused"
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

// Ordering says in which order events are delivered.
// +kubebuilder:validation:Enum=None;Key
type Ordering string

const (
	// OrderingNone lets events overtake each other.
	OrderingNone Ordering = "None"
	// OrderingKey delivers the events of a key one after the other.
	OrderingKey Ordering = "Key"
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
