// Package cloudsink sends events to the queues and topics of the clouds as CloudEvents 1.0: Amazon SQS
// and SNS, Google Cloud Pub/Sub and Azure Service Bus. Package cloudevent says which attributes they
// carry.
//
// It was not tried against the real services. It was tried against Moto (SQS and SNS), against Google's
// own fake, pstest (Pub/Sub), and against a small AMQP 1.0 server on Qpid Proton with the login of
// Service Bus. What those cannot be made to answer, such as access that is denied, throttling or expired
// credentials of AWS, was tried against a server that answers it word for word.
//
// # Settings
//
//	sqs         default            meaning
//	----------  -----------------  --------------------------------------------------------------
//	queueURL    none, required     the queue's URL
//	region      queueURL's, else   the queue's region
//	            AWS_REGION
//	endpoint    queueURL's host    where the service is called, as for a VPC endpoint
//	timeout     10s                of one request
//
//	sns         default            meaning
//	----------  -----------------  --------------------------------------------------------------
//	topicARN    none, required     the topic's ARN
//	endpoint    the region's       where the service is called, as for a VPC endpoint
//	timeout     10s                of one request
//
//	pubSub      default            meaning
//	----------  -----------------  --------------------------------------------------------------
//	project     none, required     the id of the project that has the topics
//	topic       the event's topic  where every event goes
//	contentMode Binary             Binary: attributes ce-<name>, content-type application/json, the
//	                               payload as data. Structured: one JSON object
//	endpoint    Google's           a region's address with https, or an emulator's with http, which
//	                               gets no credentials
//	timeout     10s                of one request
//
//	serviceBus  default            meaning
//	----------  -----------------  --------------------------------------------------------------
//	namespace   none, required     the namespace's host name
//	queue       the event's topic  where every event goes
//	topic       the event's topic  where every event goes; queue or topic, not both
//	contentMode Binary             Binary: application properties cloudEvents:<name>, the payload as
//	                               body. Structured: one JSON object
//	endpoint    namespace          host or host:port that is connected to instead
//	timeout     10s                of one delivery
//
// A route makes the name of a queue or topic of the same account and region, project or namespace, in
// place of the one in queueURL or topicARN, or of topic or queue. It never leads out of it.
//
// # Messages
//
//	             event's key (C-71)   event id                 in a request  bytes at most
//	-----------  -------------------  -----------------------  ------------  -----------------------
//	SQS, SNS     message group, FIFO  deduplication id, FIFO   10            1 MiB; SNS 256 KiB. Of a
//	                                                                         request in all
//	Pub/Sub      ordering key         ce-id                    500           10,000,000
//	Service Bus  session              message id               1             what the link says
//
// SQS and SNS allow ten attributes, fewer than a CloudEvent has. So their messages are one JSON object
// each, with all attributes, and in addition those that filter policies want: content-type, ce_id,
// ce_source, ce_type, ce_subject, ce_topic, ce_tenantid and ce_fencingtoken. A key that is too long for
// a group, or has characters that it does not take, is replaced by its SHA-256 in hex. A FIFO queue or
// topic is known by its name's end, .fifo; a subscription of Pub/Sub keeps the order of keys when
// message ordering is enabled, and a queue of Service Bus when sessions are.
//
// The configuration's message adds attributes (two for SQS and SNS, whose messages take ten), and has formats whose
// body is the payload and whose attributes are those alone: see dispatcher/sink/README.md.
//
// # Guarantees
//
// At least once: an event is delivered when the service has answered that it has it. A FIFO queue drops
// an event that it took within five minutes before, and a queue or topic of Service Bus with duplicate
// detection one of its window. No request is sent twice in one delivery: the SDKs' own retries are off,
// because a second one would carry the same fencing token (CONTRACT C-27). One exception is Azure's SDK:
// it sends a message once more when the service ended the link, as it does with one that was idle.
//
// The clouds' own SDKs are used, and not gocloud.dev/pubsub: its Send leaves a message in a queue of its
// own when the context ends, and sends it later.
//
// # Outcomes
//
//	what happened                                     outcome
//	------------------------------------------------  -------------------------------------------
//	the service has the message                       delivered
//	no connection, no credentials: DNS, dial, TLS, a  unavailable: nothing was sent
//	token that cannot be got
//	the service answers: expired or wrong             unavailable: it took nothing, and would take
//	credentials; Service Bus: no access               no other event either
//	the service answers: access denied, no such queue unavailable when every event goes there (it is
//	or topic                                          set, no routes), else destination's fault
//	the service answers: throttled, full, trouble of  destination's fault
//	its own
//	the service answers anything else                 failed: it took nothing
//	larger than the service takes                     dead: permanent_failure
//	no response within timeout, or the connection broke failed: it may have been taken
//	ctx ended                                         interrupted, and never sent later
//
// A failed event spends an attempt and is retried by the backoff policy. A destination's fault does so
// while other events of the topic are delivered; while none is, the attempt is given back. An unavailable
// event goes back as it was, and claiming pauses (CONTRACT C-32). SQS and SNS answer for each message. Pub/Sub answers
// for a request: one that may be refused for a single message is sent again message by message.
//
// A connection to Service Bus that was idle for 30 seconds is given up: the service ends idle links, which
// its SDK tells only when something was sent.
//
// # How to secure it
//
// Credentials come from the environment, as the cloud's own tools take them, and are renewed without a
// restart. Give the pods a service account of their own (spec.serviceAccount) and let the
// cloud know it:
//
//	cloud   by                                       it needs
//	------  ---------------------------------------  -----------------------------------------------
//	AWS     IAM Roles for Service Accounts, or EKS   sqs:SendMessage or sns:Publish; for encrypted
//	        Pod Identity                             ones also kms:GenerateDataKey and kms:Decrypt
//	Google  Workload Identity Federation for GKE     roles/pubsub.publisher
//	Azure   Microsoft Entra Workload ID (and the     Azure Service Bus Data Sender
//	        label azure.workload.identity/use)
//
// The connections are TLS, and trust the system's roots; SSL_CERT_FILE in the pods' environment replaces
// them, as for a proxy that opens TLS. SQS, SNS and Pub/Sub keep to HTTPS_PROXY.
//
// # Probe
//
// Probe checks the queue or topic, and sends no message: sqs:GetQueueAttributes, sns:GetTopicAttributes,
// pubsub.topics.get. A response that this is not allowed is enough: it comes from the service. For Service
// Bus it logs in and opens a link.
package cloudsink
