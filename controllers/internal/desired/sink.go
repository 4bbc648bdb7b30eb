package desired

import (
	"strings"

	"github.com/outbox-operator/outbox-operator/api/spec"
)

// SinkKind names the kind of sink, as the Sink column shows it: the one that is set.
func SinkKind(s spec.Sink) string {
	set := members(s)
	for _, kind := range spec.SinkKinds() {
		if name, _, _ := strings.Cut(kind.Tag.Get("json"), ","); set[name] != nil {
			return name
		}
	}
	return ""
}
