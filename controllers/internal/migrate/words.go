package migrate

import (
	"fmt"
	"strings"
)

// Sentence says where a migration that has not succeeded stands, what keeps it, and what to do.
func (m Migration) Sentence() string {
	of := ""
	if m.Of != "" {
		of = " of " + m.Of
	}
	if m.Unmade {
		return fmt.Sprintf("The migration Job%s is not made yet; the conditions%s say why.", of, of)
	}
	if m.State != Failed {
		return strings.TrimSpace(fmt.Sprintf("The migration Job%s runs. %s", of, m.Detail))
	}
	text := "The migration" + of + " failed"
	if m.Detail != "" {
		text += ": " + strings.TrimSuffix(m.Detail, ".")
	}
	return text + ". It is tried again by itself, and at once when the spec changes; see `kubectl logs -l " + m.Selector + "`."
}
