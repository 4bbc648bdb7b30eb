package desired

import (
	"strings"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

// SinkKind names the kind of sink, as the Sink column shows it: the one that is set.
func SinkKind(s v1alpha1.Sink) string {
	set := members(s)
	for _, kind := range spec.SinkKinds() {
		if name, _, _ := strings.Cut(kind.Tag.Get("json"), ","); set[name] != nil {
			return name
		}
	}
	return ""
}
