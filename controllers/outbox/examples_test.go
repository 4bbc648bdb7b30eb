package outbox

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/migrate"
	"github.com/outbox-operator/outbox-operator/controllers/internal/operatortest"
	"github.com/outbox-operator/outbox-operator/controllers/internal/problem"
)

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
	outbox := &api.Outbox{Spec: api.OutboxSpec{Adopt: []api.Adoption{{Name: "orders", Phase: api.AdoptionShadow}}},
		Status: api.OutboxStatus{Adoptions: []api.AdoptionStatus{{Name: "orders", Phase: string(api.AdoptionShadow), Missing: 2}}}}

	inUse := observed{outbox: outbox, dispatchers: []api.OutboxDispatcher{warehouse, works}}
	fails := observed{outbox: outbox, migration: migrate.Migration{State: migrate.Failed, Selector: "outbox.dev/component=migration,outbox.dev/outbox=orders",
		Detail: "permission denied for schema outbox"}, missing: problem.Waiting(api.ReferencesResolvedCondition, api.ReasonSecretNotFound,
		`Secret "orders-db-owner", which spec.migration.secretRef names, does not exist in namespace "shop"; create it, and the operator continues.`)}
	stalled := observed{outbox: outbox, problem: problem.Stalling(api.SchemaReadyCondition, api.ReasonForeignObject,
		`Job "orders-migrate-5d7c" exists and does not belong to this Outbox; delete it, or choose another name for the Outbox.`)}
	operatortest.CheckExamples(t, "outbox.md", slices.Concat(conditions(inUse), conditions(fails), conditions(stalled))...)
}
