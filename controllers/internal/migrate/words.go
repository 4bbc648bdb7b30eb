package migrate

import (
	"cmp"
	"fmt"
	"strings"
)

// Sentence says where a migration that has not succeeded stands, what keeps it, and what to do.
func (m Migration) Sentence() string {
	of, what := "", cmp.Or(m.What, "migration")
	if m.Of != "" {
		of = " of " + m.Of
	}
	if m.Unmade {
		return fmt.Sprintf("The %s Job%s is not made yet; the conditions%s say why.", what, of, of)
	}
	if m.State != Failed {
		return strings.TrimSpace(fmt.Sprintf("The %s Job%s runs. %s", what, of, m.Detail))
	}
	text := "The " + what + of + " failed"
	if m.Detail != "" {
		text += ": " + strings.TrimSuffix(m.Detail, ".")
	}
	return text + ". It is tried again by itself, and at once when the spec changes; see `kubectl logs -l " + m.Selector + "`."
}
