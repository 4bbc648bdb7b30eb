package desired

import (
	"testing"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// Each reason of the contract has one name in the API. CONTRACT: C-42
func TestDeadReasons(t *testing.T) {
	for contract, api := range map[dispatcher.DeadReason]string{
		dispatcher.ReasonMaxRetriesExceeded: "MaxRetriesExceeded", dispatcher.ReasonPoisonMessage: "PoisonMessage",
		dispatcher.ReasonSchemaValidationFailed: "SchemaValidationFailed", dispatcher.ReasonProcessingTimeout: "ProcessingTimeout",
		dispatcher.ReasonPermanentFailure: "PermanentFailure", "": "",
	} {
		if got := DeadReason(string(contract)); got != api || ContractReason(got) != string(contract) {
			t.Errorf("%s is %s in the API, and %s again", contract, got, ContractReason(got))
		}
	}
}
