package document

import (
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/replay"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

const replayed = `apiVersion: outbox.dev/v1alpha1
kind: DeadLetterReplay
metadata: {name: chg-812, namespace: shop, uid: 5f0c6f6e-5a0c-4a35-9d5b-1d6c8d0f2a11}
spec:
  outboxRef: {name: main}
  namespace: orders
  action: Replay
  reason: CHG-812
  requestedBy: ada
  selector: {topics: [a, b], group: 7f3a9c21, reason: PermanentFailure, type: T, aggregate: order/7, tenant: 5f0c6f6e-5a0c-4a35-9d5b-1d6c8d0f2a12,
    ids: ["7"], errorContains: "422", since: 2026-01-01T00:00:00Z, until: 2026-01-02T00:00:00Z}
  rate: 500
  limit: 7
  canary: 10
  abortAt: 20
  dryRun: true
`

// The request has all that the object says, and the settings the login of replays.
//
// CONTRACT: C-42
func TestLoadReplay(t *testing.T) {
	dir := t.TempDir()
	file := write(t, dir, "replay.yaml", replayed+"---\n"+strings.Replace(main, "  retention:", "  replayLogin: {secretRef: {name: replay}}\n  retention:", 1))
	c, r, err := LoadReplay(file, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(dir, "secrets/replay/dsn"); c.Name != "shop/chg-812-replay" || c.Namespace != "orders" || c.Database.DSNFile != want || !slices.Equal(c.Topics, []string{"a", "b"}) {
		t.Errorf("the settings are %+v", c)
	}
	want := replay.Request{
		ID: uuid.MustParse("5f0c6f6e-5a0c-4a35-9d5b-1d6c8d0f2a11"), Namespace: "orders", Topics: []string{"a", "b"}, Action: replay.ActionReplay, Reason: "CHG-812", RequestedBy: "ada",
		Filter: deadletters.Filter{Group: "7f3a9c21", Reason: "permanent_failure", Type: "T", Aggregate: "order/7", Tenant: "5f0c6f6e-5a0c-4a35-9d5b-1d6c8d0f2a12", IDs: []string{"7"},
			ErrorContains: "422", Since: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), Until: time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)},
		Rate: 500, Limit: 7, Canary: 10, AbortAt: 20, DryRun: true,
	}
	need.That(t, reflect.DeepEqual(r, want), "the request is\n%+v\nwant\n%+v", r, want)
	again, err := Load(file, Options{Login: spec.LoginReplay})
	need.That(t, err == nil && reflect.DeepEqual(again, c), "for the commands about replays the settings are %+v, %v", again, err)
	for want, text := range map[string]string{
		`spec.outboxRef.name: no Outbox named main is in `:                                   replayed,
		`metadata.uid is missing; give a UUID, by which the next run continues the replay`:   strings.NewReplacer("uid", "labels: {}, x", "dryRun: true", "dryRun: false").Replace(replayed) + "---\n" + main,
		`spec.dispatcherRef: only the operator knows what that delivers; write outboxRef`:    strings.NewReplacer("outboxRef", "dispatcherRef", "  namespace: orders\n", "").Replace(replayed),
		`: spec.namespace: Invalid value: namespace, the outbox namespace of the events, be`: strings.Replace(replayed, "  namespace: orders\n", "", 1),
		`has no DeadLetterReplay; write one of them there`:                                   main,
	} {
		_, _, err := LoadReplay(write(t, t.TempDir(), "replay.yaml", text), Options{})
		need.That(t, err != nil && strings.Contains(err.Error(), want), "%v\nwant %s", err, want)
	}
}

// Each reason of the contract has one name in the objects. CONTRACT: C-42
func TestDeadReasons(t *testing.T) {
	for contract, object := range map[dispatcher.DeadReason]string{
		dispatcher.ReasonMaxRetriesExceeded: "MaxRetriesExceeded", dispatcher.ReasonPoisonMessage: "PoisonMessage",
		dispatcher.ReasonSchemaValidationFailed: "SchemaValidationFailed", dispatcher.ReasonProcessingTimeout: "ProcessingTimeout",
		dispatcher.ReasonPermanentFailure: "PermanentFailure", "": "",
	} {
		if got := spec.DeadReason(string(contract)); got != object || spec.ContractReason(got) != string(contract) {
			t.Errorf("%s is %s in objects, and %s again", contract, got, spec.ContractReason(got))
		}
	}
}
