package spec

// Dispatcher says which events are delivered, where and how.
//
// +kubebuilder:validation:XValidation:rule="has(self.outboxRef) != has(self.database)",message="exactly one of outboxRef and database says where the outbox is; set outboxRef to the name of an Outbox, or database to the connection of this dispatcher alone"
// +kubebuilder:validation:XValidation:rule="![self.delivery.lease, self.delivery.pollInterval].all(d, d.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$')) || duration(self.delivery.pollInterval) + duration(self.delivery.pollInterval) + duration(self.delivery.pollInterval) <= duration(self.delivery.lease)",fieldPath=".delivery.pollInterval",message="pollInterval must be at most a third of lease, so that a lost lease is noticed in time; lower pollInterval or raise lease"
// +kubebuilder:validation:XValidation:rule="self.delivery.fairness != 'Tenant' || self.delivery.ordering != 'Key'",fieldPath=".delivery.fairness",message="fairness Tenant does not work with ordering Key, which decides itself what comes next; set one of them to None"
// +kubebuilder:validation:XValidation:rule="!has(self.delivery.tenantRateLimit) || self.delivery.fairness == 'Tenant'",fieldPath=".delivery.tenantRateLimit",message="tenantRateLimit needs fairness Tenant; set it, or remove tenantRateLimit"
// +kubebuilder:validation:XValidation:rule="self.delivery.onDead != 'Block' || self.delivery.ordering == 'Key'",fieldPath=".delivery.onDead",message="onDead Block belongs to ordering Key, because without it no event waits for another; set ordering to Key, or remove onDead"
// +kubebuilder:validation:XValidation:rule="[self.sink.?timeout.orValue(has(self.sink.log) ? '0s' : has(self.sink.kafka) || has(self.sink.postgres) || has(self.sink.rabbitmq) ? '30s' : '10s')].all(t, ![t, self.delivery.timeout].all(d, d.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$')) || duration(t) <= duration(self.delivery.timeout))",fieldPath=".delivery.timeout",message="delivery.timeout must be at least as long as sink.timeout, which else never ends a delivery; raise delivery.timeout, or lower sink.timeout (when not set it is 30s for kafka, postgres and rabbitmq, 10s for the others)"
// +kubebuilder:validation:XValidation:rule="!has(self.sink.kafka) || self.sink.kafka.encoding == 'JSON' || has(self.message.schemaRegistry)",fieldPath=".message.schemaRegistry",message="message.schemaRegistry is needed by sink.kafka.encoding Avro and Protobuf; add it, or set encoding to JSON"
// +kubebuilder:validation:XValidation:rule="has(self.message.schemaRegistry) || !has(self.message.validation) || self.message.validation.all(v, !has(v.schema) || !has(v.schema.registry))",fieldPath=".message.schemaRegistry",message="message.schemaRegistry is needed by validation that names a schema of the registry; add it, or set inline or configMapRef"
// +kubebuilder:validation:XValidation:rule="self.message.format == 'CloudEvents' && !has(self.message.headers) || !(has(self.sink.log) || has(self.sink.postgres))",fieldPath=".message",message="format and headers are for sinks whose messages have headers, and those of log and postgres have none; remove them, or choose another sink"
// +kubebuilder:validation:XValidation:rule="self.message.format != 'Debezium' || has(self.sink.kafka)",fieldPath=".message.format",message="format Debezium is what its outbox event router writes to Kafka; choose Plain with headers of your own, or the sink kafka"
// +kubebuilder:validation:XValidation:rule="self.message.format == 'CloudEvents' || self.sink.?contentMode.orValue('Binary') == 'Binary'",fieldPath=".message.format",message="format must be CloudEvents unless contentMode is Binary, because the payload is the whole body; set contentMode to Binary, or format to CloudEvents"
// +kubebuilder:validation:XValidation:rule="!has(self.message.headers) || self.message.headers.size() == 0 || self.sink.?contentMode.orValue('Binary') != 'Batch'",fieldPath=".message.headers",message="headers are of one event, and contentMode Batch has several in a request; choose another contentMode, or remove headers"
// +kubebuilder:validation:XValidation:rule="!has(self.message.headers) || !(has(self.sink.sqs) || has(self.sink.sns)) || self.message.headers.size() + (self.message.format == 'Storage' ? ['aggregate_id', 'correlation_id', 'event_type'].filter(n, !self.message.headers.exists(h, h.name == n)).size() : 0) <= (self.message.format == 'CloudEvents' ? 2 : 10)",fieldPath=".message.headers",message="headers must be at most two for sqs and sns with format CloudEvents, and ten with another, among them those of format Storage, because a message has ten attributes; remove some"
// +kubebuilder:validation:XValidation:rule="!has(self.message.headers) || self.message.headers.all(h, has(self.sink.http) ? !h.name.matches('^(?i)(authorization|connection|content-length|host|transfer-encoding|webhook-(id|signature|timestamp))$') && (!has(self.sink.http.headers) || self.sink.http.headers.all(o, o.name.lowerAscii() != h.name.lowerAscii())) : has(self.sink.nats) ? !h.name.matches('^(?i)nats-') : has(self.sink.pubSub) ? !h.name.matches('^(?i)goog') : has(self.sink.rabbitmq) ? !h.name.matches('^(?i)b?cc$') : has(self.sink.redis) ? h.name != 'data' && (self.message.format != 'CloudEvents' || !h.name.matches('^[a-z0-9]+$')) : has(self.sink.sns) || has(self.sink.sqs) ? !h.name.matches('^(?i)(amazon|aws)[.]') : true)",fieldPath=".message.headers",message="headers must have no name that messages of the sink have already, or keep for themselves: of http those in sink.http.headers, authorization, connection, content-length, host, transfer-encoding, webhook-id, webhook-signature and webhook-timestamp; of nats nats-*; of pubSub goog*; of rabbitmq cc and bcc; of redis data, and with format CloudEvents those of lower-case alphanumeric characters alone; of sns and sqs aws.* and amazon.*; choose another"
// +kubebuilder:validation:XValidation:rule="!has(self.sink.copy) || has(self.topics) && self.topics.size() > 0 && !self.topics.exists(t, t in self.sink.copy.topics)",fieldPath=".sink.copy",message="copy needs topics, which name what is copied, and none of them may be in copy.topics, because a topic that is copied to itself would never end; name the topics to copy, or remove the one that is in both"
// +kubebuilder:validation:XValidation:rule="!has(self.sink.copy) || self.message.format == 'CloudEvents' && ![has(self.message.headers), has(self.message.schemaRegistry), has(self.message.transform), has(self.message.validation)].exists(set, set)",fieldPath=".message",message="message is about what is sent, and copy leaves events in the database as they are; remove it here, and set it in the dispatchers of the copies"
type Dispatcher struct {
	// namespace is the namespace of the events, a column of outbox_events.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	Namespace string `json:"namespace,omitempty"`

	// topics are the topics to deliver. Empty means all.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=255
	Topics []string `json:"topics,omitempty"`

	// outboxRef names the Outbox with the events, unless database does.
	// +optional
	OutboxRef *OutboxRef `json:"outboxRef,omitempty"`

	// database is the dispatcher's own database. Not set with outboxRef.
	// +optional
	Database *DispatcherDatabase `json:"database,omitempty"`

	// sink is the destination of the events.
	// +required
	Sink Sink `json:"sink,omitzero"`

	// message is what an event becomes: format, headers, checks, changes.
	// +optional
	// +kubebuilder:default={format: CloudEvents}
	Message Message `json:"message,omitzero"`

	// delivery says how events are claimed, delivered and retried.
	// +optional
	// +kubebuilder:default={lease: "30s"}
	Delivery Delivery `json:"delivery,omitzero"`

	// objective says how fresh events must be. Alerts hold a dispatcher to it.
	// +optional
	// +kubebuilder:default={freshness: "5m"}
	Objective Objective `json:"objective,omitzero"`

	// replicas is the number of pods. From 0 to 100. Defaults to 1.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	Replicas *int32 `json:"replicas,omitempty"`

	// state is Running or Paused, which claims nothing. Defaults to Running.
	// +optional
	// +kubebuilder:default=Running
	State State `json:"state,omitempty"`

	// pods says what the pods are: log, scaling, account, pull secrets, template.
	// +optional
	// +kubebuilder:default={log: {level: Info}}
	Pods Pods `json:"pods,omitzero"`
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
