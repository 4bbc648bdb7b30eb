package outbox

import (
	"fmt"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/status"
	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/kstatus"
	"github.com/outbox-operator/outbox-operator/controllers/internal/migrate"
	"github.com/outbox-operator/outbox-operator/controllers/internal/operatortest"
	"github.com/outbox-operator/outbox-operator/controllers/internal/problem"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// dispatcher has conditions of the types and reasons.
func dispatcher(name string, conditions ...metav1.Condition) api.OutboxDispatcher {
	return api.OutboxDispatcher{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec.Dispatcher{Namespace: "shop"},
		Status: api.OutboxDispatcherStatus{Conditions: conditions}}
}

func is(kind string, status metav1.ConditionStatus, reason string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: reason + "."}
}

// CONTRACT: C-104
func TestConditionsSumUpTheDispatchers(t *testing.T) {
	const no, yes, unknown = metav1.ConditionFalse, metav1.ConditionTrue, metav1.ConditionUnknown
	connected, fits := is(api.SourceReachableCondition, yes, api.ReasonConnected), is(api.SchemaReadyCondition, yes, api.ReasonUpToDate)
	refused := is(api.SourceReachableCondition, no, api.ReasonAuthenticationFailed)
	for name, c := range map[string]struct {
		o      observed
		ready  string
		also   []string
		absent []string
	}{
		"nothing is known": {observed{}, "Unknown/NotObserved",
			[]string{"SourceReachable=Unknown/NotObserved", "VacuumHeldBack=Unknown/NotObserved", "DataHealthy=Unknown/NotObserved", "TopicsShared=False/NotShared"}, []string{"Reconciling", "Stalled"}},
		"migrated, and not in use": {observed{migration: migrate.Migration{State: migrate.Succeeded}}, "True/UpToDate",
			[]string{"SourceReachable=Unknown/NotObserved", "ReferencesResolved=True/Resolved"}, nil},
		"migrated, without the rights of replays": {observed{migration: migrate.Migration{State: migrate.Succeeded, Detail: "replayLogin gets no rights: x"}}, "True/UpToDate",
			[]string{"SchemaReady=True/UpToDate: The migration Job has brought the schema up to date. replayLogin gets no rights: x."}, nil},
		"in use, without the rights of replays": {observed{migration: migrate.Migration{State: migrate.Succeeded, Detail: "replayLogin gets no rights: x"},
			dispatchers: []api.OutboxDispatcher{dispatcher("b", connected, fits)}}, "True/UpToDate", []string{"SchemaReady=True/UpToDate: UpToDate. replayLogin gets no rights: x."}, nil},
		"migrates": {observed{migration: migrate.Migration{State: migrate.Running}}, "False/Migrating", []string{"Reconciling=True/Migrating"}, nil},
		"in use":   {observed{dispatchers: []api.OutboxDispatcher{dispatcher("a"), dispatcher("b", connected, fits)}}, "True/UpToDate", []string{"SourceReachable=True/Connected"}, nil},
		"migrates again while it is in use": {observed{migration: migrate.Migration{State: migrate.Running},
			dispatchers: []api.OutboxDispatcher{dispatcher("b", connected, fits)}}, "True/UpToDate", []string{"Reconciling=True/Migrating"}, nil},
		"none can log in": {observed{migration: migrate.Migration{State: migrate.Succeeded},
			dispatchers: []api.OutboxDispatcher{dispatcher("a", refused, fits), dispatcher("b", refused, is(api.ReadyCondition, yes, api.ReasonScaledToZero))}},
			"False/AuthenticationFailed", []string{"SourceReachable=False/AuthenticationFailed"}, []string{"Reconciling", "Stalled"}},
		"one cannot log in, and another works": {observed{dispatchers: []api.OutboxDispatcher{dispatcher("a", connected, fits), dispatcher("b", refused)}},
			"True/InUseDespiteTrouble", []string{"SourceReachable=False/AuthenticationFailed"}, nil},
		"a new pod cannot log in, and those that run work": {observed{dispatchers: []api.OutboxDispatcher{dispatcher("a", refused, fits, is(api.ReadyCondition, yes, api.ReasonDeliveringDespiteTrouble))}},
			"True/InUseDespiteTrouble", []string{"SourceReachable=False/AuthenticationFailed"}, nil},
		"the destination is unreachable": {observed{dispatchers: []api.OutboxDispatcher{dispatcher("a", connected, fits, is(api.ReadyCondition, no, api.ReasonConnectionFailed))}},
			"True/UpToDate", nil, nil},
		"a new Secret is missing, and pods run": {observed{missing: problem.Waiting(api.ReferencesResolvedCondition, api.ReasonSecretNotFound, "x"),
			dispatchers: []api.OutboxDispatcher{dispatcher("a", connected, fits)}}, "True/InUseDespiteTrouble", []string{"ReferencesResolved=False/SecretNotFound"}, nil},
		"too new, whatever migrates": {observed{migration: migrate.Migration{State: migrate.Failed},
			dispatchers: []api.OutboxDispatcher{dispatcher("a", is(api.SchemaReadyCondition, no, api.ReasonTooNew))}}, "False/TooNew", []string{"Reconciling=True/MigrationFailed"}, nil},
		"other migrations of the same number, whatever migrates": {observed{migration: migrate.Migration{State: migrate.Failed},
			dispatchers: []api.OutboxDispatcher{dispatcher("a", is(api.SchemaReadyCondition, no, api.ReasonDiffers))}}, "False/Differs", []string{"Reconciling=True/MigrationFailed"}, nil},
		"a foreign object": {observed{problem: problem.Stalling(api.SchemaReadyCondition, api.ReasonForeignObject, "x")}, "False/ForeignObject",
			[]string{"Stalled=True/ForeignObject"}, []string{"Reconciling"}},
		"a key is missing": {observed{missing: problem.Waiting(api.ReferencesResolvedCondition, api.ReasonSecretKeyNotFound, "x"), migration: migrate.Migration{State: migrate.Running}},
			"False/SecretKeyNotFound", []string{"ReferencesResolved=False/SecretKeyNotFound"}, nil},
		"vacuum": {observed{dispatchers: []api.OutboxDispatcher{dispatcher("a", is(api.VacuumHeldBackCondition, no, api.ReasonNotHeldBack)),
			dispatcher("b", is(api.VacuumHeldBackCondition, yes, api.ReasonReplicationSlot))}}, "Unknown/NotObserved", []string{"VacuumHeldBack=True/ReplicationSlot"}, nil},
		"orphaned rows": {observed{migration: migrate.Migration{State: migrate.Succeeded}, dispatchers: []api.OutboxDispatcher{
			dispatcher("a", is(api.DataHealthyCondition, yes, api.ReasonHealthy)), dispatcher("b", is(api.DataHealthyCondition, no, api.ReasonTopicsUnserved))}},
			"True/UpToDate", []string{"DataHealthy=False/TopicsUnserved"}, nil},
		"topics shared": {observed{migration: migrate.Migration{State: migrate.Succeeded}, dispatchers: []api.OutboxDispatcher{
			dispatcher("a", is(api.TopicsSharedCondition, yes, api.ReasonTopicsShared))}}, "True/UpToDate", []string{"TopicsShared=True/TopicsShared"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			c.o.outbox = &api.Outbox{ObjectMeta: metav1.ObjectMeta{Name: "shop", Namespace: "n"}, Spec: spec.Outbox{Migration: &spec.Migration{}}}
			operatortest.CheckConditions(t, conditions(c.o), append([]string{api.ReadyCondition + "=" + c.ready}, c.also...), c.absent)
		})
	}
}

// Lists are bounded, and counts are sums.
func TestStatusIsBounded(t *testing.T) {
	var all []api.OutboxDispatcher
	for i := range 100 {
		d := dispatcher(fmt.Sprintf("d%03d", i))
		d.Spec.Namespace = fmt.Sprintf("n%03d", i/2)
		for j := range 30 {
			d.Spec.Topics = append(d.Spec.Topics, fmt.Sprintf("t%02d", j))
		}
		d.Status.Counts = &status.Counts{Pending: 2, Dead: 1, OldestPending: status.Time(1000 - i)}
		d.Status.SchemaVersion = ptr.To(int64(5 - i%2))
		all = append(all, d)
	}
	s := api.OutboxStatus{SchemaVersion: ptr.To[int64](6)}
	setStatus(&s, observed{outbox: &api.Outbox{}, dispatchers: all})
	if *s.SchemaVersion != 5 {
		t.Errorf("the version is %d, want that of the dispatchers, though it was higher", *s.SchemaVersion)
	}
	if *s.DispatcherCount != 100 || len(s.Dispatchers) != listed || len(s.Dispatchers[0].Topics) != listedTopics {
		t.Errorf("%d dispatchers, %d listed with %d topics", *s.DispatcherCount, len(s.Dispatchers), len(s.Dispatchers[0].Topics))
	}
	if *s.Pending != 200 || *s.Dead != 100 || len(s.Backlog) != 50 || s.Backlog[0].Pending != 4 || s.Backlog[0].OldestPending != 999 {
		t.Errorf("pending %d, dead %d, by namespace %+v", *s.Pending, *s.Dead, s.Backlog[0])
	}
	setStatus(&s, observed{outbox: &api.Outbox{}})
	need.That(t, s.DispatcherCount != nil && *s.DispatcherCount == 0 && s.Pending == nil && s.Backlog == nil && s.Dispatchers == nil, "status %+v without a dispatcher", s)
}

// The last run is that of the dispatchers whose pods respond: another one may have seen a clock that was ahead. CONTRACT: C-3
func TestRetentionIsThatOfDispatchersThatRespond(t *testing.T) {
	seen := func(pods int32, at status.Time) api.OutboxDispatcher {
		d := dispatcher("d")
		d.Status.RespondingReplicas, d.Status.Retention = pods, &status.RetentionTotals{LastRun: at}
		return d
	}
	s := api.OutboxStatus{}
	for _, test := range []struct {
		dispatchers []api.OutboxDispatcher
		want        status.Time
	}{{[]api.OutboxDispatcher{seen(1, 900), seen(2, 100)}, 900}, {[]api.OutboxDispatcher{seen(0, 900), seen(2, 100), seen(1, 200)}, 200}, {[]api.OutboxDispatcher{seen(0, 900)}, 200}, {nil, 200}} {
		setRetention(&s, test.dispatchers)
		need.Want(t, test.want, "the last run was at %d, want %d", s.Retention.LastRun)
	}
}

// Trouble next to dispatchers that work has one Event, that of its own condition.
func TestEventsOfReady(t *testing.T) {
	const yes = metav1.ConditionTrue
	fits, despite := is(api.ReadyCondition, yes, api.ReasonUpToDate), is(api.ReadyCondition, yes, api.ReasonInUseDespiteTrouble)
	bad := is(api.ReadyCondition, metav1.ConditionFalse, api.ReasonAuthenticationFailed)
	for _, c := range []struct {
		before, after metav1.Condition
		events        int
	}{{fits, despite, 0}, {bad, despite, 1}, {despite, fits, 1}} {
		got := kstatus.Transitions(watched, []metav1.Condition{c.before}, []metav1.Condition{c.after})
		need.That(t, len(got) == c.events, "from %s to %s: %+v, want %d Events", c.before.Reason, c.after.Reason, got, c.events)
	}
}

// The page of the kind has an example of each condition, as the operator writes it.
// CONTRACT: C-104
func TestExamplesOnThePage(t *testing.T) {
	says := func(kind string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
		return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message}
	}
	warehouse := dispatcher("warehouse",
		says(api.SourceReachableCondition, metav1.ConditionFalse, api.ReasonAuthenticationFailed,
			`Database "shop" at db:5432 as user "outbox": password authentication failed for user "outbox"; correct the user and the password, or the server's pg_hba.conf.`),
		says(api.VacuumHeldBackCondition, metav1.ConditionTrue, api.ReasonPreparedTransaction,
			"The prepared transaction 'xa-17' has kept vacuum from removing rows for more than 15 minutes, so the outbox grows and gets slower. End it in its database: commit prepared 'xa-17', or rollback prepared 'xa-17'."),
		says(api.DataHealthyCondition, metav1.ConditionFalse, api.ReasonTopicsUnserved,
			`Events are due that no dispatcher serves: topic "invoices" of outbox namespace "shop". Make an OutboxDispatcher for them, or correct the namespace or topic that their producer gives enqueue.`),
		says(api.TopicsSharedCondition, metav1.ConditionTrue, api.ReasonTopicsShared, ""))
	works := dispatcher("mail", is(api.SourceReachableCondition, metav1.ConditionTrue, api.ReasonConnected), is(api.SchemaReadyCondition, metav1.ConditionTrue, api.ReasonUpToDate))
	outbox := &api.Outbox{}

	inUse := observed{outbox: outbox, dispatchers: []api.OutboxDispatcher{warehouse, works}}
	fails := observed{outbox: outbox, migration: migrate.Migration{State: migrate.Failed, Selector: "outbox.dev/component=migration,outbox.dev/outbox=orders",
		Detail: "permission denied for schema outbox"}, missing: problem.Waiting(api.ReferencesResolvedCondition, api.ReasonSecretNotFound,
		`Secret "orders-db-owner", which spec.migration.secretRef names, does not exist in namespace "shop"; create it, and the operator continues.`)}
	stalled := observed{outbox: outbox, problem: problem.Stalling(api.SchemaReadyCondition, api.ReasonForeignObject,
		`Job "orders-migrate-5d7c" exists and does not belong to this Outbox; delete it, or choose another name for the Outbox.`)}
	operatortest.CheckExamples(t, "outbox.md", slices.Concat(conditions(inUse), conditions(fails), conditions(stalled))...)
}
