// Package autoscaling_test plays what the examples query.
package autoscaling_test

import (
	"os"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// The query of keda.yaml sees that an event is due, or that none is.
func TestTheTriggerSeesDueEvents(t *testing.T) {
	text, err := os.ReadFile("keda.yaml")
	need.OK(t, err)
	var object struct {
		Spec struct {
			Triggers []struct {
				Type     string
				Metadata map[string]string
			}
		}
	}
	need.OK(t, yaml.Unmarshal([]byte(strings.Split(string(text), "\n---\n")[0]), &object))
	trigger := object.Spec.Triggers[1]
	need.Must(t, trigger.Type == "postgresql", "the second trigger is %s", trigger.Type)
	db := pgtest.Open(t, pgtest.Migrated(t))
	due := func() int64 { return pgtest.Value[int64](db, trigger.Metadata["query"]) }
	pgtest.Exec(db, `select outbox.enqueue('other', 'orders', '{}')`)
	need.Want(t, 0, "with an event of another namespace it has %d", due())
	pgtest.Exec(db, `select outbox.enqueue('shop', 'orders', '{}') from generate_series(1, 2)`)
	need.Want(t, 1, "with two events it has %d, want 1", due())
	pgtest.Exec(db, `update outbox.outbox_events set next_attempt_at = now() + interval '1 hour'`)
	need.Want(t, 0, "with delayed events it has %d", due())
}
