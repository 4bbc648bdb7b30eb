package scenario

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// Condition is a condition as kubectl shows it.
type Condition struct {
	Status, Reason, Message string
	// Current is true when it is about the object's current generation.
	Current bool
}

// Condition reads one condition. It returns an error when kubectl fails.
func (d *Dispatcher) Condition(ctx context.Context, kind string) (Condition, error) {
	const sep = "\x1f"
	path := fmt.Sprintf(`jsonpath={.metadata.generation}%[2]s{.status.conditions[?(@.type==%[1]q)].observedGeneration}%[2]s{.status.conditions[?(@.type==%[1]q)].status}%[2]s{.status.conditions[?(@.type==%[1]q)].reason}%[2]s{.status.conditions[?(@.type==%[1]q)].message}`, kind, sep)
	out, err := d.Run(ctx, "-n", d.Namespace, "get", "outboxdispatcher", d.Name, "-o", path)
	if err != nil {
		return Condition{}, err
	}
	f := strings.Split(out, sep)
	if len(f) != 5 {
		return Condition{}, fmt.Errorf("condition %s: unexpected output %q", kind, out)
	}
	return Condition{Status: f[2], Reason: f[3], Message: f[4], Current: f[0] == f[1]}, nil
}

// WaitCondition waits until a condition has the status and, when reason is not empty, the reason.
// It returns an error when ctx ends first.
func (d *Dispatcher) WaitCondition(ctx context.Context, kind, status, reason string) error {
	what := fmt.Sprintf("condition %s=%s %s of %s/%s", kind, status, reason, d.Namespace, d.Name)
	return Until(ctx, what, func() (bool, string) {
		c, err := d.Condition(ctx, kind)
		if err != nil {
			return false, err.Error()
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
