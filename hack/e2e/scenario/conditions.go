package scenario

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

// Condition is a condition as kubectl shows it.
type Condition struct {
	Status, Reason, Message string
	// Current is true when it is about the object's current generation, or it is absent, and the status is.
	Current bool
}

// Condition reads one condition. It returns an error when kubectl fails.
func (d *Dispatcher) Condition(ctx context.Context, kind string) (Condition, error) {
	const sep = "\x1f"
	path := fmt.Sprintf(`jsonpath={.metadata.generation}%[2]s{.status.conditions[?(@.type==%[1]q)].observedGeneration}%[2]s{.status.conditions[?(@.type==%[1]q)].status}%[2]s{.status.conditions[?(@.type==%[1]q)].reason}%[2]s{.status.conditions[?(@.type==%[1]q)].message}%[2]s{.status.observedGeneration}`, kind, sep)
	out, err := d.Run(ctx, "-n", d.Namespace, "get", "outboxdispatcher", d.Name, "-o", path)
	if err != nil {
		return Condition{}, err
	}
	f := strings.Split(out, sep)
	if len(f) != 6 {
		return Condition{}, fmt.Errorf("condition %s: unexpected output %q", kind, out)
	}
	return Condition{Status: f[2], Reason: f[3], Message: f[4], Current: f[0] == cmp.Or(f[1], f[5])}, nil
}

// WaitCondition waits until a condition has the status and, when reason is not empty, the reason; or one that is at rest then
// is absent. It returns an error when ctx ends first.
func (d *Dispatcher) WaitCondition(ctx context.Context, kind, status, reason string) error {
	atRest := v1alpha1.AtRest(metav1.Condition{Type: kind, Status: metav1.ConditionStatus(status), Reason: reason})
	what := fmt.Sprintf("condition %s=%s %s of %s/%s", kind, status, reason, d.Namespace, d.Name)
	return Until(ctx, what, func() (bool, string) {
		c, err := d.Condition(ctx, kind)
		if err != nil {
			return false, err.Error()
		}
		if atRest {
			return c.Status == "" && c.Current, fmt.Sprintf("%+v", c)
		}
		return c.Status == status && (reason == "" || c.Reason == reason) && c.Current, fmt.Sprintf("%+v", c)
	})
}

// WaitReady waits until Ready is True for the current generation. It returns an error when the timeout ends first.
func (d *Dispatcher) WaitReady(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return d.WaitCondition(ctx, "Ready", "True", "")
}
