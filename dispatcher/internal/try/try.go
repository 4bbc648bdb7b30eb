// Package try puts past rows through a configuration, and says what comes out otherwise than before. It sends
// nothing and writes nothing: rows are read in READ ONLY transactions, and sinks only make their messages.
package try

import (
	"context"
	"fmt"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
)

// ByStatus is the Against of a report that compares with what the rows' status says.
const ByStatus = "status"

// Request says what to try.
type Request struct {
	// New is the configuration to try. It must be valid.
	New spec.Config
	// Old is the one to compare with, and OldName is its name in the report. nil: the rows' status says what
	// became of them.
	Old     *spec.Config
	OldName string
	// Past says which rows. Without topics, they are those that either of the configurations takes.
	Past pgstore.Past
}

// Run tries the rows of a store. An error of a configuration is a [*ConfigError].
func Run(ctx context.Context, store *pgstore.Store, r Request) (*Report, error) {
	report := &Report{Namespace: r.New.Namespace, Against: ByStatus, Outcomes: map[Outcome]int{}}
	for _, o := range outcomes {
		report.Outcomes[o] = 0
	}
	now, err := newSide(r.New)
	if err != nil {
		return nil, &ConfigError{err}
	}
	defer now.close(ctx)
	var before *side
	if r.Old != nil {
		report.Against = r.OldName
		if r.Old.Namespace != r.New.Namespace {
			return nil, &ConfigError{fmt.Errorf("%s is for namespace %q, and the new configuration for %q; compare two of one namespace", r.OldName, r.Old.Namespace, r.New.Namespace)}
		}
		if before, err = newSide(*r.Old); err != nil {
			return nil, &ConfigError{fmt.Errorf("%s: %w", r.OldName, err)}
		}
		defer before.close(ctx)
	}
	if len(r.Past.Topics) == 0 {
		r.Past.Topics = union(now, before)
	}
	groups := map[groupKey]*Group{}
	looked, err := store.Past(ctx, r.Past, func(page []pgstore.PastRow) error {
		for _, row := range page {
			if err := report.try(ctx, groups, now, before, row); err != nil {
				return fmt.Errorf("event %s cannot be tried: %w", row.Event.ID, err)
			}
		}
		return nil
	})
	report.LookedAt, report.Incomplete = looked.Rows, !looked.All
	report.close(groups)
	return report, err
}

// ConfigError is about a configuration: it fails again.
type ConfigError struct{ error }

// Unwrap returns the error of the configuration.
func (e *ConfigError) Unwrap() error { return e.error }

// union is the topics that either takes, nil for all.
func union(now, before *side) []string {
	if before == nil || len(now.topics) == 0 {
		return now.topics
	}
	if len(before.topics) == 0 {
		return nil
	}
	return append(now.topics[:len(now.topics):len(now.topics)], before.topics...)
}

// try counts one row.
func (r *Report) try(ctx context.Context, groups map[groupKey]*Group, now, before *side, row pgstore.PastRow) error {
	e := row.Event
	e.Attempt = max(1, e.Attempt) // as the first delivery has it
	if row.Unreadable != nil {
		r.add(groups, e, Same, nil, nil) // a poison message, whatever the configuration
		return nil
	}
	after, err := now.make(ctx, e)
	if err != nil {
		return err
	}
	old := stands(row, after)
	if before != nil {
		if old, err = before.make(ctx, e); err != nil {
			return err
		}
	}
	outcome := compare(after, old)
	r.add(groups, e, outcome, now.keys(e, outcome, after, old), after.err)
	return nil
}

// close ends what the sink of a side has begun.
func (s *side) close(ctx context.Context) { _ = s.drafts.Close(context.WithoutCancel(ctx)) }
