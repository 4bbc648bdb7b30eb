package v1alpha1

// Condition types of OutboxDispatcher, and of Outbox, DeadLetterReplay and OutboxConsumer where they say so. Those of kstatus are Ready,
// Reconciling and Stalled; Reconciling, Stalled, TopicsPaused, TopicsShared, TypesUnregistered, DeadLettersPresent and
// VacuumHeldBack are bad when True, the others when False.
const (
	// ReadyCondition: events are being delivered, or would be if there were any; or the spec asks for no
	// delivery. It follows from the positive conditions below, without DataHealthy. While some pod works with the database and its
	// schema, and no pod of its revision sees the destination in trouble, nothing else makes it False: neither
	// new pods that do not become ready beside it, nor a Secret that is gone. TopicsPaused is a cause only when
	// no topic is left, and SinkReachable is none while Paused.
	//
	// True: Delivering, DeliveringDespiteTrouble (the message names the condition that has it), Paused (as
	// asked for), Pausing (a pod has not heard it yet), ScaledToZero (as asked for).
	// False: the reason of the first condition that is the cause, or Progressing.
	// Unknown: the reason of the first condition that is Unknown.
	//
	// An Outbox is Ready when dispatchers can work with it. True: UpToDate, InUseDespiteTrouble (some
	// dispatcher works with it; the message names the condition that has the trouble). False and Unknown as
	// above.
	//
	// A DeadLetterReplay is Ready when each letter of its set has its outcome. True: Finished. False: Running,
	// Stopping (it was deleted), Aborted (stopped before its end), Refused, JobFailed, or the reason of the
	// condition that keeps it.
	//
	// An OutboxConsumer is Ready when what it says fits what feeds it: its id is its own, ReferencesResolved is True and
	// RetentionSufficient is not False. Verified and EventTypesSent are no causes: evidence and events come later than the
	// object. True: Registered. False: ConsumerIDTaken, or the reason of the condition that is the cause.
	ReadyCondition = "Ready"

	// ReferencesResolvedCondition: every Secret, ConfigMap and key that the spec names was there when a
	// pod started, and is still. The operator reads no Secret: the kubelet tells it of what is missing, of
	// running pods within about two minutes. These keep what they have read when something goes, so Ready
	// stays True. When it is there again, the condition is True after eight minutes, or when the pods have
	// started anew.
	//
	// True: Resolved. False: SecretNotFound, SecretKeyNotFound, ConfigMapNotFound,
	// ConfigMapKeyNotFound, OutboxNotFound; of a DeadLetterReplay also DispatcherNotFound, ReplayLoginMissing,
	// TopicNotDelivered; of an OutboxConsumer DispatcherNotFound and OutboxNotFound alone. Unknown: NotObserved (no pod
	// has started yet).
	ReferencesResolvedCondition = "ReferencesResolved"

	// SchemaReadyCondition: the outbox schema is there, in a version that the dispatchers work with.
	//
	// True: UpToDate.
	// False: Missing, TooOld, TooNew, Migrating, MigrationFailed.
	// Unknown: NotObserved.
	SchemaReadyCondition = "SchemaReady"

	// SourceReachableCondition: the dispatchers reach the database and may log in.
	//
	// True: Connected.
	// False: AuthenticationFailed, PermissionDenied, CertificateInvalid, DatabaseNotFound,
	// ConnectionFailed; OutcomesRefused (the database answers, and refuses what is written back of some
	// events, by a trigger, a check or a missing right; the others are delivered).
	// Unknown: NotObserved.
	SourceReachableCondition = "SourceReachable"

	// SinkReachableCondition: the destination takes events, of some topic at least.
	//
	// True: Connected.
	// False: ConnectionFailed, CertificateInvalid, AuthenticationFailed, Refusing (nothing is
	// delivered); CallsStuck (every call of a pod's sink hangs).
	// Unknown: NotObserved, NotTried.
	SinkReachableCondition = "SinkReachable"

	// TopicsPausedCondition: some topics are paused, because what receives them fails, while the
	// destination as a whole is reached; or because a type of theirs has no verified consumer.
	//
	// True: TopicsPaused (others are delivered), AllTopicsPaused (no topic that has events is left, which
	// makes Ready False), ConsumersNotVerified (by spec.requireVerifiedConsumers alone; that is what was
	// asked for, so Ready does not follow from it). False: NoTopicsPaused. Unknown: NotObserved.
	//
	// The pods stay ready, because they work: another pod would meet the same destination, and an
	// unready one would only keep a rollout, perhaps of the remedy, from going on.
	TopicsPausedCondition = "TopicsPaused"

	// WorkloadAvailableCondition: the Deployment has the replicas that were asked for, and they answer.
	//
	// True: Available, ScaledToZero.
	// False: PartlyAvailable (some pods deliver; others are not ready, as new ones of a rollout that hangs, or
	// do not answer the operator),
	// Progressing, Unavailable (also when a quota or an admission policy refuses a new pod),
	// InvalidPodTemplate, InvalidPipeline (new pods refuse an expression or a schema of routes,
	// validation or transform), InvalidConfiguration (they refuse another part of the configuration),
	// ForeignObject, ApplyRefused.
	WorkloadAvailableCondition = "WorkloadAvailable"

	// DeadLettersPresentCondition: rows were given up, and wait for a person.
	//
	// True: DeadLetters. False: NoDeadLetters. Unknown: NotObserved.
	DeadLettersPresentCondition = "DeadLettersPresent"

	// VacuumHeldBackCondition: something has kept vacuum from removing rows that are gone for more
	// than 15 minutes. Events are still delivered, but the outbox grows, and slower with it.
	//
	// True: OldTransaction (a session's), PreparedTransaction (one that was not ended),
	// ReplicationSlot (of a replica or a consumer that does not follow), StandbyFeedback (a query on a
	// standby with hot_standby_feedback).
	// False: NotHeldBack. Unknown: NotObserved.
	//
	// A dispatcher's login is not told what the transaction of another role's session holds, so any
	// that stays open for so long counts. With pg_read_all_stats those that hold nothing do not.
	VacuumHeldBackCondition = "VacuumHeldBack"

	// DataHealthyCondition: somebody works on every due row of the database, of whatever namespace. Rows of topics
	// that are served flow, so Ready does not follow from it.
	//
	// True: Healthy.
	// False: TopicsUnserved (rows have been due for a minute in topics that no dispatcher serves),
	// LeasesAbandoned (rows are leased to a worker that is gone, and nobody has taken them over for a minute).
	// Unknown: NotObserved.
	DataHealthyCondition = "DataHealthy"

	// TopicsSharedCondition: another dispatcher of the same outbox delivers topics that this one delivers
	// too. Each event goes to one of the two only, to whichever claims it first. Of an Outbox: two of its
	// dispatchers do. Events flow, so Ready does not follow from it.
	//
	// True: TopicsShared. False: NotShared.
	TopicsSharedCondition = "TopicsShared"

	// TypesUnregisteredCondition: the dispatcher delivers events of types that no OutboxConsumer registers.
	// Events flow, so Ready does not follow from it.
	//
	// True: TypesUnregistered. False: TypesRegistered, NotUsed (there is no OutboxConsumer in the namespace). Unknown:
	// NotObserved (no event was seen yet).
	TypesUnregisteredCondition = "TypesUnregistered"

	// RetentionSufficientCondition, of an OutboxConsumer: it knows for long enough what it has handled: for 7 days at
	// least (RULE-010-011), and for as long as delivered rows are kept.
	//
	// True: RetentionSufficient. False: RetentionTooShort. Unknown: NotObserved (nothing that feeds it is there).
	RetentionSufficientCondition = "RetentionSufficient"

	// EventTypesSentCondition, of an OutboxConsumer: a dispatcher that feeds it has sent events of each of its types in
	// the last 30 days.
	//
	// True: TypesSent. False: TypesNotSent. Unknown: NotObserved (no event was seen yet, or of so many types that not
	// all are known).
	EventTypesSentCondition = "EventTypesSent"

	// VerifiedCondition, of an OutboxConsumer: there is evidence that it is idempotent (RULE-010-030).
	//
	// True: Verified. False: EvidenceMissing, RulesBroken, EffectsNotCounted (nobody has seen whether an effect came
	// twice), EvidenceTooOld.
	VerifiedCondition = "Verified"

	// AdoptedCondition, of an Outbox: each adoption of spec.adopt has reached its phase, and the counts of its rows and of
	// its events agree. Ready does not follow from it. Absent when nothing is adopted.
	//
	// True: AsDeclared, LeftCutOver (one that was cut over is not in spec.adopt any more, and stays cut over).
	// False: Adopting (a step is under way), AdoptionFailed, CountsDiffer (rows have no event, or events no row),
	// RowsRefused (no event can be made of some rows).
	AdoptedCondition = "Adopted"

	// ReconcilingCondition (kstatus): the operator is working towards the spec, or waits for what it
	// needs, and goes on by itself. Absent when not.
	//
	// True: Progressing, Running, Stopping, Migrating, MigrationFailed, Adopting, AdoptionFailed, SecretNotFound, SecretKeyNotFound,
	// ConfigMapNotFound, ConfigMapKeyNotFound, OutboxNotFound, DispatcherNotFound, ReplayLoginMissing; in a rollout that hangs, what new pods say: a
	// reason of SourceReachable, SchemaReady or SinkReachable.
	ReconcilingCondition = "Reconciling"

	// StalledCondition (kstatus): the operator cannot go on until somebody changes something that
	// waiting does not. Absent when not.
	//
	// True: InvalidPodTemplate, InvalidPipeline, InvalidConfiguration, ForeignObject, ApplyRefused; of a
	// DeadLetterReplay also Aborted, Refused, JobFailed, TopicNotDelivered; of an OutboxConsumer ConsumerIDTaken,
	// RetentionTooShort.
	StalledCondition = "Stalled"
)

// ReasonRolledOut is of an Event: the operator has changed the pods' template.
const ReasonRolledOut = "RolledOut"

// Reasons of Events of a DeadLetterReplay that no condition has.
const (
	// ReasonBegan: the set is fixed.
	ReasonBegan = "Began"
	// ReasonStopped: it was deleted, and what waited is skipped.
	ReasonStopped = "Stopped"
	// ReasonNotStopped: it was deleted, and what waited could not be skipped in time. Nothing moves it.
	ReasonNotStopped = "NotStopped"
)

// Reasons of Events of an Outbox that no condition has: an adoption has reached a phase.
const (
	// ReasonShadowed: the shadow has begun.
	ReasonShadowed = "Shadowed"
	// ReasonCutOver: the dispatchers send what waits.
	ReasonCutOver = "CutOver"
	// ReasonWentBack: all is as it was before.
	ReasonWentBack = "WentBack"
)

// Reasons of conditions. An event about a condition has the same reason.
const (
	ReasonDelivering               = "Delivering"
	ReasonDeliveringDespiteTrouble = "DeliveringDespiteTrouble"
	ReasonInUseDespiteTrouble      = "InUseDespiteTrouble"
	ReasonPaused                   = "Paused"
	ReasonPausing                  = "Pausing"
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
	ReasonUpToDate                 = "UpToDate"
	ReasonMissing                  = "Missing"
	ReasonTooOld                   = "TooOld"
	ReasonTooNew                   = "TooNew"
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
	ReasonCallsStuck               = "CallsStuck"
	ReasonAvailable                = "Available"
	ReasonPartlyAvailable          = "PartlyAvailable"
	ReasonUnavailable              = "Unavailable"
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
	ReasonTopicsUnserved           = "TopicsUnserved"
	ReasonLeasesAbandoned          = "LeasesAbandoned"
	ReasonTopicsShared             = "TopicsShared"
	ReasonNotShared                = "NotShared"
	ReasonAsDeclared               = "AsDeclared"
	ReasonLeftCutOver              = "LeftCutOver"
	ReasonAdopting                 = "Adopting"
	ReasonAdoptionFailed           = "AdoptionFailed"
	ReasonCountsDiffer             = "CountsDiffer"
	ReasonRowsRefused              = "RowsRefused"
	ReasonRunning                  = "Running"
	ReasonFinished                 = "Finished"
	ReasonStopping                 = "Stopping"
	ReasonAborted                  = "Aborted"
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
	ReasonEvidenceTooOld           = "EvidenceTooOld"
	ReasonTypesUnregistered        = "TypesUnregistered"
	ReasonTypesRegistered          = "TypesRegistered"
	ReasonNotUsed                  = "NotUsed"
)
