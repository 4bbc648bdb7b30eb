package v1alpha1

// Condition types of OutboxDispatcher. Those of kstatus are Ready, Reconciling and Stalled;
// Reconciling, Stalled, DeadLettersPresent and VacuumHeldBack are bad when True, the others when
// False.
const (
	// ReadyCondition: events are being delivered, or would be if there were any. It is True only
	// when every positive condition below is True, or when nothing is asked to run.
	//
	// True: Delivering, Paused (as asked for), ScaledToZero (as asked for).
	// False: the reason of the first condition that is False, or Progressing.
	// Unknown: the reason of the first condition that is Unknown.
	ReadyCondition = "Ready"

	// SecretsResolvedCondition: every Secret, ConfigMap and key that the spec names is there.
	//
	// True: Resolved. False: SecretNotFound, SecretKeyNotFound, ConfigMapNotFound,
	// ConfigMapKeyNotFound.
	SecretsResolvedCondition = "SecretsResolved"

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
	// ConnectionFailed.
	// Unknown: NotObserved.
	SourceReachableCondition = "SourceReachable"

	// SinkReachableCondition: the destination takes events, of every topic.
	//
	// True: Connected.
	// False: ConnectionFailed, CertificateInvalid, AuthenticationFailed, Refusing (nothing is
	// delivered); TopicsHeld (some topics are held back, because what receives them fails, while the
	// others are delivered).
	// Unknown: NotObserved, NotTried.
	//
	// A held topic makes Ready False too: its events wait for a person, and Ready speaks of delivery,
	// not of processes. The pods stay ready all the same, because they work: another pod would meet
	// the same destination, and an unready one would only keep a rollout, perhaps of the remedy, from
	// going on.
	SinkReachableCondition = "SinkReachable"

	// WorkloadAvailableCondition: the Deployment has the replicas that were asked for.
	//
	// True: Available, ScaledToZero.
	// False: Progressing, Unavailable, InvalidPodTemplate, InvalidPipeline (an expression or a schema of
	// routes, validation or transform is wrong), ForeignObject, ApplyRefused.
	WorkloadAvailableCondition = "WorkloadAvailable"

	// DeadLettersPresentCondition: rows were given up, and wait for a person.
	//
	// True: DeadLetters. False: NoDeadLetters. Unknown: NotObserved.
	DeadLettersPresentCondition = "DeadLettersPresent"

	// VacuumHeldBackCondition: something has kept vacuum from removing rows that are gone for more
	// than 15 minutes. Events are still delivered, but the outbox grows, and slower with it.
	//
	// True: OldTransaction (a session's), PreparedTransaction (one that nobody has ended),
	// ReplicationSlot (of a replica or a consumer that does not follow), StandbyFeedback (a query on a
	// standby with hot_standby_feedback).
	// False: NotHeldBack. Unknown: NotObserved.
	//
	// A dispatcher's login is not told what the transaction of another role's session holds, so any
	// that stays open for so long counts. With pg_read_all_stats those that hold nothing do not.
	VacuumHeldBackCondition = "VacuumHeldBack"

	// ReconcilingCondition (kstatus): the operator is working towards the spec, or waits for what it
	// needs, and goes on by itself. Absent when not.
	//
	// True: Progressing, Migrating, MigrationFailed, SecretNotFound, SecretKeyNotFound,
	// ConfigMapNotFound, ConfigMapKeyNotFound.
	ReconcilingCondition = "Reconciling"

	// StalledCondition (kstatus): the operator cannot go on until somebody changes something that
	// waiting does not. Absent when not.
	//
	// True: InvalidPodTemplate, InvalidPipeline, ForeignObject, ApplyRefused.
	StalledCondition = "Stalled"
)

// Reasons of conditions. An event about a condition has the same reason.
const (
	ReasonDelivering           = "Delivering"
	ReasonPaused               = "Paused"
	ReasonScaledToZero         = "ScaledToZero"
	ReasonProgressing          = "Progressing"
	ReasonNotObserved          = "NotObserved"
	ReasonNotTried             = "NotTried"
	ReasonResolved             = "Resolved"
	ReasonSecretNotFound       = "SecretNotFound"
	ReasonSecretKeyNotFound    = "SecretKeyNotFound"
	ReasonConfigMapNotFound    = "ConfigMapNotFound"
	ReasonConfigMapKeyNotFound = "ConfigMapKeyNotFound"
	ReasonUpToDate             = "UpToDate"
	ReasonMissing              = "Missing"
	ReasonTooOld               = "TooOld"
	ReasonTooNew               = "TooNew"
	ReasonMigrating            = "Migrating"
	ReasonMigrationFailed      = "MigrationFailed"
	ReasonConnected            = "Connected"
	ReasonAuthenticationFailed = "AuthenticationFailed"
	ReasonPermissionDenied     = "PermissionDenied"
	ReasonCertificateInvalid   = "CertificateInvalid"
	ReasonDatabaseNotFound     = "DatabaseNotFound"
	ReasonConnectionFailed     = "ConnectionFailed"
	ReasonRefusing             = "Refusing"
	ReasonTopicsHeld           = "TopicsHeld"
	ReasonAvailable            = "Available"
	ReasonUnavailable          = "Unavailable"
	ReasonInvalidPodTemplate   = "InvalidPodTemplate"
	ReasonInvalidPipeline      = "InvalidPipeline"
	ReasonForeignObject        = "ForeignObject"
	ReasonApplyRefused         = "ApplyRefused"
	ReasonDeadLetters          = "DeadLetters"
	ReasonNoDeadLetters        = "NoDeadLetters"
	ReasonOldTransaction       = "OldTransaction"
	ReasonPreparedTransaction  = "PreparedTransaction"
	ReasonReplicationSlot      = "ReplicationSlot"
	ReasonStandbyFeedback      = "StandbyFeedback"
	ReasonNotHeldBack          = "NotHeldBack"
)
