package v1alpha1

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Condition types of OutboxDispatcher, and of Outbox, DeadLetterReplay and OutboxConsumer where they say so. Those of
// kstatus are Ready, Reconciling and Stalled. Those of badWhenTrue are bad when True, the others when False. Those of
// onlyInTrouble are absent while they are good or Unknown: an Event has the reason of a good one when the trouble is over.
const (
	// ReadyCondition: events are being delivered, or would be if there were any; or the spec turns delivery off. It
	// follows from the positive conditions below, without DataHealthy. While a pod works with the database and its
	// schema, and no pod of its revision reports trouble with the destination, no other cause makes it False: neither
	// new pods that do not become ready, nor a missing Secret. TopicsPaused is a cause only when no topic is left, and
	// SinkReachable is not a cause while Paused.
	//
	// True: Delivering, DeliveringDespiteTrouble (the message names the condition with the trouble), Paused (by the
	// spec), Pausing (a pod has not paused yet), ScaledToZero (by the spec).
	// False: the reason of the first condition that is the cause, Progressing, or Resuming (the pods wait for their rollout
	// to claim again, for two minutes at most).
	// Unknown: the reason of the first condition that is Unknown.
	//
	// An Outbox is Ready when dispatchers can work with it. True: UpToDate, InUseDespiteTrouble (a dispatcher works
	// with it; the message names the condition with the trouble). False and Unknown as above.
	//
	// An OutboxConsumer is Ready when its registration fits the dispatchers that feed it: its id is unique,
	// ReferencesResolved is True and RetentionSufficient is not False. Verified and EventTypesSent do not count:
	// evidence and events come later than the object. True: Registered. False: ConsumerIDTaken, or the reason of the
	// condition that is the cause.
	ReadyCondition = "Ready"

	// CompleteCondition, of a DeadLetterReplay: each dead letter of its set has its outcome. It has no Ready, because it
	// finishes, as a Job does.
	//
	// True: Finished. False: Running, Waiting (events fail, or have no outcome: the message says why), Aborted (stopped before its end), Refused, JobFailed,
	// Restored (a copy of one that has begun, such as from a backup, which replays nothing), or the reason of the condition that is the cause.
	// Unknown: Progressing (no pass could be finished yet).
	CompleteCondition = "Complete"

	// FailedCondition, of a DeadLetterReplay: it has ended before its dead letters had their outcomes.
	//
	// True: Aborted, Refused, JobFailed. Absent otherwise.
	FailedCondition = "Failed"

	// ReferencesResolvedCondition: every Secret, ConfigMap and key that the spec names existed when a pod started, and
	// still exists. The operator reads no Secret: the kubelet reports missing ones, for running pods within about two
	// minutes. Running pods keep what they have read, so Ready does not follow from it, unless their login is refused. When
	// a pod has started since, or three minutes after the object exists again (eight when it was missing for long, since the
	// kubelet reports it less often then), the condition is True.
	//
	// True: Resolved. False: SecretNotFound, SecretKeyNotFound, ConfigMapNotFound, ConfigMapKeyNotFound,
	// OutboxNotFound; of a DeadLetterReplay also DispatcherNotFound, ReplayLoginMissing, TopicNotDelivered; of an
	// OutboxConsumer DispatcherNotFound and OutboxNotFound alone. Unknown: NotObserved (no pod has started yet).
	ReferencesResolvedCondition = "ReferencesResolved"

	// SchemaReadyCondition: the outbox schema exists, in a version that the dispatchers work with.
	//
	// True: UpToDate.
	// False: Missing, TooOld, TooNew, Differs (a migration has another content than the
	// dispatchers'), SequencesBehind, Migrating, MigrationFailed; while the pod of the migration does not
	// start, or has ended, what it gives: ImagePullFailed, ContainerNotStarted, Unschedulable, Unavailable (a quota or an
	// admission policy refuses it), OOMKilled, ProgressDeadlineExceeded.
	// Unknown: NotObserved.
	SchemaReadyCondition = "SchemaReady"

	// SourceReachableCondition: the dispatchers reach the database and can log in.
	//
	// True: Connected.
	// False: AuthenticationFailed, PermissionDenied, CertificateInvalid, DatabaseNotFound, ConnectionFailed;
	// OutcomesRefused (the database responds, and refuses the outcomes of some events by a trigger, a check or a
	// missing right; the others are delivered); ClaimsRefused (likewise, and refuses to lease some events, or any); TooFewConnections.
	// Unknown: NotObserved.
	SourceReachableCondition = "SourceReachable"

	// SinkReachableCondition: the destination accepts events, of at least one topic.
	//
	// True: Connected.
	// False: ConnectionFailed, CertificateInvalid, AuthenticationFailed, Refusing (nothing is delivered); CallsStuck
	// (every call of a pod's sink hangs).
	// Unknown: NotObserved, NotTried.
	SinkReachableCondition = "SinkReachable"

	// TopicsPausedCondition: some topics are paused, because their destination fails while the sink as a whole is
	// reachable, or because an event type has no verified consumer.
	//
	// True: TopicsPaused (others are delivered), AllTopicsPaused (no topic that has events is left), ConsumersNotVerified
	// (only with spec.delivery.consumerPolicy Verified). Ready is False while no topic that has events is left. False:
	// NoTopicsPaused. Unknown: NotObserved.
	//
	// The pods stay ready: another pod would meet the same destination, and an unready one would only stop a rollout,
	// perhaps of the remedy.
	TopicsPausedCondition = "TopicsPaused"

	// WorkloadAvailableCondition: the Deployment has spec.replicas pods, and they respond.
	//
	// True: Available, ScaledToZero.
	// False: PartlyAvailable (some pods deliver; others are not ready, such as new ones of a rollout that hangs, or do
	// not respond to the operator), Progressing, ImagePullFailed, CrashLoop, OOMKilled, ContainerNotStarted, Unschedulable,
	// Unavailable (also when a quota or an admission policy refuses a new pod), InvalidSpec, InvalidPodTemplate, InvalidPipeline (new
	// pods refuse an expression or a schema of routes, validation or transform), InvalidConfiguration (they refuse
	// another part of the configuration), ForeignObject, ApplyRefused.
	WorkloadAvailableCondition = "WorkloadAvailable"

	// DeadLettersPresentCondition: unresolved dead rows wait for a person.
	//
	// True: DeadLetters. False: NoDeadLetters. Unknown: NotObserved.
	DeadLettersPresentCondition = "DeadLettersPresent"

	// VacuumHeldBackCondition: a transaction has kept vacuum from removing dead tuples for more than 15 minutes.
	// Events are still delivered, but the outbox grows and becomes slower.
	//
	// True: OldTransaction (a session's), PreparedTransaction (one that was not ended), ReplicationSlot (of a replica
	// or a consumer that does not follow), StandbyFeedback (a query on a standby with hot_standby_feedback).
	// False: NotHeldBack. Unknown: NotObserved.
	//
	// A dispatcher's login cannot see what the transaction of another role's session holds, so any that stays open for
	// so long counts. With pg_read_all_stats those that hold nothing do not count.
	VacuumHeldBackCondition = "VacuumHeldBack"

	// DataHealthyCondition: every due row of the dispatcher's own outbox namespace has a worker, and the journal, where it is
	// on, has no difference from the rows. Rows of served topics are delivered, so Ready does not follow from it.
	//
	// True: Healthy, OthersUnserved (rows of another outbox namespace are due in topics that no dispatcher serves).
	// False: TopicsUnserved (rows of that namespace have been due for a minute in topics that no dispatcher serves),
	// LeasesAbandoned (rows of it are leased to a worker that does not run any more, and no other has taken them over for a
	// minute), AdoptedRowsLeft (rows of an adopted table are refused, missing or waiting), JournalDiffers (rows were changed past the dispatchers; dispatcher verify names each).
	// Unknown: NotObserved.
	DataHealthyCondition = "DataHealthy"

	// TopicsSharedCondition: another dispatcher of the same outbox also delivers topics of this one. Each event is
	// delivered by one of the two, whichever claims it first. Of an Outbox: two of its dispatchers share topics.
	// Events are delivered, so Ready does not follow from it.
	//
	// True: TopicsShared. False: NotShared.
	TopicsSharedCondition = "TopicsShared"

	// TypesUnregisteredCondition: the dispatcher delivers events of types that no OutboxConsumer registers. Events are
	// delivered, so Ready does not follow from it.
	//
	// True: TypesUnregistered. False: TypesRegistered, NotUsed (there is no OutboxConsumer in the namespace). Unknown:
	// NotObserved (no event was seen yet).
	TypesUnregisteredCondition = "TypesUnregistered"

	// ScalingLimitedCondition: the backlog needs more pods than spec.pods.scaling may run, or more pods than there are would
	// deliver no more. Only with spec.pods.scaling. Events are delivered, so Ready does not follow from it.
	//
	// True: AtMaximum (spec.pods.scaling.max), NoGain (the last step up gained less than a tenth), ReplicasNotUsed
	// (a person or an autoscaler sets spec.replicas by the scale subresource, and spec.pods.scaling.mode is Apply), and what limits the pods:
	// LimitedByDestination, LimitedByRate, LimitedByDatabase, LimitedByOrder, LimitedByConsumer.
	// False: NotLimited. Unknown: NotObserved.
	ScalingLimitedCondition = "ScalingLimited"

	// RetentionSufficientCondition, of an OutboxConsumer: it remembers handled events for at least 7 days
	// (RULE-010-011), and for as long as delivered rows are kept.
	//
	// True: RetentionSufficient. False: RetentionTooShort. Unknown: NotObserved (no dispatcher feeds it).
	RetentionSufficientCondition = "RetentionSufficient"

	// EventTypesSentCondition, of an OutboxConsumer: a dispatcher that feeds it has sent events of each of its types
	// in the last 30 days.
	//
	// True: TypesSent. False: TypesNotSent. Unknown: NotObserved (no event was seen yet, or of so many types that not
	// all are known).
	EventTypesSentCondition = "EventTypesSent"

	// VerifiedCondition, of an OutboxConsumer: there is evidence that it is idempotent (RULE-010-030).
	//
	// True: Verified. False: EvidenceMissing, RulesBroken, EffectsNotCounted (the checks did not count the effects),
	// RulesNotTried (checks were left out that the consumer does not declare to be without meaning), EvidenceTooOld.
	VerifiedCondition = "Verified"

	// ReconcilingCondition (kstatus): the operator is working towards the spec, or waits for what it needs, and
	// continues by itself. Absent when not. Of any kind it is False while the annotation outbox.dev/reconcile is Disabled.
	//
	// False: ReconcileDisabled.
	// True: Progressing, Running, Waiting, Migrating, MigrationFailed, SecretNotFound,
	// SecretKeyNotFound, ConfigMapNotFound, ConfigMapKeyNotFound, OutboxNotFound, DispatcherNotFound,
	// ReplayLoginMissing; while a migration waits, the reason of SchemaReady; in a rollout that hangs, the reason of new
	// pods: one of SourceReachable, SchemaReady or SinkReachable.
	ReconcilingCondition = "Reconciling"

	// StalledCondition (kstatus): the operator cannot continue until a person makes a change. Absent when not. A rollout
	// that exceeds the Deployment's progressDeadlineSeconds (600 by default), and a migration whose pod does not start for as
	// long, is Stalled too, with the reason that Reconciling would have; it continues by itself when the cause is gone, and Ready keeps its rule.
	//
	// True: NamespaceFull (the objects of the namespace take more than its share of the operator's memory; the main condition is
	// Unknown then), InvalidSpec (a field is missing that the definition requires), InvalidPodTemplate, InvalidPipeline,
	// InvalidConfiguration, ForeignObject, ApplyRefused; after the deadline the
	// reason of new pods (such as ImagePullFailed, or SecretNotFound), else ProgressDeadlineExceeded; of a
	// DeadLetterReplay also Aborted, Refused, JobFailed, Restored, TopicNotDelivered, ReplayLoginMissing (a dispatcher
	// without outboxRef); of an OutboxConsumer ConsumerIDTaken, RetentionTooShort.
	StalledCondition = "Stalled"
)

// ReasonRolledOut is of an Event: the operator has changed the pods' template.
const ReasonRolledOut = "RolledOut"

// ReasonScaled is of an Event: the operator has changed the number of pods, by spec.pods.scaling.
const ReasonScaled = "Scaled"

// ReasonManagedByAnotherOperator is of an Event that an operator records about an object whose status.operator is another
// one: it writes nothing else. It is also of ReferencesResolved, of a dispatcher whose Outbox another operator manages.
const ReasonManagedByAnotherOperator = "ManagedByAnotherOperator"

// AnnotationReconcile with the value [ReconcileDisabled], on an object of any kind, lets the operator change nothing that
// it has made for the object: it applies no edit, not even of replicas or state. The condition Reconciling is False then,
// and observedGeneration stays that of the last edit that was applied. The status of an OutboxDispatcher continues to say
// what its pods report; that of another kind stays as it was. A deletion is not held back.
const AnnotationReconcile = "outbox.dev/reconcile"

// ReconcileDisabled is the value of [AnnotationReconcile], in any case.
const ReconcileDisabled = "Disabled"

// Reasons of Events of a DeadLetterReplay that no condition has.
const (
	// ReasonBegan: the set is fixed.
	ReasonBegan = "Began"
)

// Reasons of conditions. An event about a condition has the same reason.
const (
	ReasonDelivering               = "Delivering"
	ReasonDeliveringDespiteTrouble = "DeliveringDespiteTrouble"
	ReasonInUseDespiteTrouble      = "InUseDespiteTrouble"
	ReasonPaused                   = "Paused"
	ReasonPausing                  = "Pausing"
	ReasonImagePullFailed          = "ImagePullFailed"
	ReasonCrashLoop                = "CrashLoop"
	ReasonOOMKilled                = "OOMKilled"
	ReasonContainerNotStarted      = "ContainerNotStarted"
	ReasonUnschedulable            = "Unschedulable"
	ReasonReconcileDisabled        = "ReconcileDisabled"
	ReasonProgressDeadlineExceeded = "ProgressDeadlineExceeded"
	ReasonResuming                 = "Resuming"
	ReasonScaledToZero             = "ScaledToZero"
	ReasonProgressing              = "Progressing"
	ReasonNotObserved              = "NotObserved"
	ReasonNotTried                 = "NotTried"
	ReasonResolved                 = "Resolved"
	ReasonSecretNotFound           = "SecretNotFound"
	ReasonSecretKeyNotFound        = "SecretKeyNotFound"
	ReasonConfigMapNotFound        = "ConfigMapNotFound"
	ReasonConfigMapKeyNotFound     = "ConfigMapKeyNotFound"
	ReasonOutboxNotFound           = "OutboxNotFound"
	ReasonNamespaceFull            = "NamespaceFull"
	ReasonUpToDate                 = "UpToDate"
	ReasonMissing                  = "Missing"
	ReasonTooOld                   = "TooOld"
	ReasonTooNew                   = "TooNew"
	ReasonDiffers                  = "Differs"
	ReasonSequencesBehind          = "SequencesBehind"
	ReasonMigrating                = "Migrating"
	ReasonMigrationFailed          = "MigrationFailed"
	ReasonConnected                = "Connected"
	ReasonAuthenticationFailed     = "AuthenticationFailed"
	ReasonPermissionDenied         = "PermissionDenied"
	ReasonCertificateInvalid       = "CertificateInvalid"
	ReasonDatabaseNotFound         = "DatabaseNotFound"
	ReasonConnectionFailed         = "ConnectionFailed"
	ReasonRefusing                 = "Refusing"
	ReasonTopicsPaused             = "TopicsPaused"
	ReasonAllTopicsPaused          = "AllTopicsPaused"
	ReasonNoTopicsPaused           = "NoTopicsPaused"
	ReasonConsumersNotVerified     = "ConsumersNotVerified"
	ReasonOutcomesRefused          = "OutcomesRefused"
	ReasonClaimsRefused            = "ClaimsRefused"
	ReasonTooFewConnections        = "TooFewConnections"
	ReasonCallsStuck               = "CallsStuck"
	ReasonAvailable                = "Available"
	ReasonPartlyAvailable          = "PartlyAvailable"
	ReasonUnavailable              = "Unavailable"
	ReasonInvalidSpec              = "InvalidSpec"
	ReasonInvalidPodTemplate       = "InvalidPodTemplate"
	ReasonInvalidPipeline          = "InvalidPipeline"
	ReasonInvalidConfiguration     = "InvalidConfiguration"
	ReasonForeignObject            = "ForeignObject"
	ReasonApplyRefused             = "ApplyRefused"
	ReasonDeadLetters              = "DeadLetters"
	ReasonNoDeadLetters            = "NoDeadLetters"
	ReasonOldTransaction           = "OldTransaction"
	ReasonPreparedTransaction      = "PreparedTransaction"
	ReasonReplicationSlot          = "ReplicationSlot"
	ReasonStandbyFeedback          = "StandbyFeedback"
	ReasonNotHeldBack              = "NotHeldBack"
	ReasonHealthy                  = "Healthy"
	ReasonOthersUnserved           = "OthersUnserved"
	ReasonTopicsUnserved           = "TopicsUnserved"
	ReasonLeasesAbandoned          = "LeasesAbandoned"
	ReasonAdoptedRowsLeft          = "AdoptedRowsLeft"
	ReasonJournalDiffers           = "JournalDiffers"
	ReasonTopicsShared             = "TopicsShared"
	ReasonNotShared                = "NotShared"
	ReasonRunning                  = "Running"
	ReasonWaiting                  = "Waiting"
	ReasonFinished                 = "Finished"
	ReasonAborted                  = "Aborted"
	ReasonRestored                 = "Restored"
	ReasonRefused                  = "Refused"
	ReasonJobFailed                = "JobFailed"
	ReasonDispatcherNotFound       = "DispatcherNotFound"
	ReasonReplayLoginMissing       = "ReplayLoginMissing"
	ReasonTopicNotDelivered        = "TopicNotDelivered"
	ReasonRegistered               = "Registered"
	ReasonConsumerIDTaken          = "ConsumerIDTaken"
	ReasonRetentionSufficient      = "RetentionSufficient"
	ReasonRetentionTooShort        = "RetentionTooShort"
	ReasonTypesSent                = "TypesSent"
	ReasonTypesNotSent             = "TypesNotSent"
	ReasonVerified                 = "Verified"
	ReasonEvidenceMissing          = "EvidenceMissing"
	ReasonRulesBroken              = "RulesBroken"
	ReasonEffectsNotCounted        = "EffectsNotCounted"
	ReasonRulesNotTried            = "RulesNotTried"
	ReasonEvidenceTooOld           = "EvidenceTooOld"
	ReasonAtMaximum                = "AtMaximum"
	ReasonNoGain                   = "NoGain"
	ReasonReplicasNotUsed          = "ReplicasNotUsed"
	ReasonLimitedByDestination     = "LimitedByDestination"
	ReasonLimitedByRate            = "LimitedByRate"
	ReasonLimitedByDatabase        = "LimitedByDatabase"
	ReasonLimitedByOrder           = "LimitedByOrder"
	ReasonLimitedByConsumer        = "LimitedByConsumer"
	ReasonNotLimited               = "NotLimited"
	ReasonTypesUnregistered        = "TypesUnregistered"
	ReasonTypesRegistered          = "TypesRegistered"
	ReasonNotUsed                  = "NotUsed"
)

var badWhenTrue = []string{
	ReconcilingCondition, StalledCondition, FailedCondition, TopicsPausedCondition, TopicsSharedCondition, TypesUnregisteredCondition,
	DeadLettersPresentCondition, VacuumHeldBackCondition, ScalingLimitedCondition,
}

// onlyInTrouble are conditions that an object has only while something is wrong, or worth a look.
var onlyInTrouble = []string{
	TopicsPausedCondition, TopicsSharedCondition, TypesUnregisteredCondition, DeadLettersPresentCondition, VacuumHeldBackCondition,
	DataHealthyCondition, ScalingLimitedCondition,
}

// AtRest reports whether a condition is absent from the status of an object, because it has nothing that a user can act on.
func AtRest(c metav1.Condition) bool {
	return slices.Contains(onlyInTrouble, c.Type) && c.Status != BadStatus(c.Type) && c.Reason != ReasonOthersUnserved
}

// BadStatus is the status with which a condition of the type says that something is wrong: True or False.
func BadStatus(conditionType string) metav1.ConditionStatus {
	if slices.Contains(badWhenTrue, conditionType) {
		return metav1.ConditionTrue
	}
	return metav1.ConditionFalse
}
