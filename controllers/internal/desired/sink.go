package desired

import "github.com/outbox-operator/outbox-operator/api/v1alpha1"

// SinkKind names the kind of sink, as the Sink column shows it: the one member that is set.
func SinkKind(s v1alpha1.Sink) string {
	for kind := range converted[map[string]any](s) {
		return kind
	}
	return ""
}
