package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// exemplar names the trace of an event whose producer sampled it, else nil. The delivery's span is in
// the same trace. A header that is anything else than a W3C traceparent is never shown.
func exemplar(e *dispatcher.Event) prometheus.Labels {
	const length, id, flags = len("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"), 3, 53
	parent := e.Headers["traceparent"]
	if len(parent) < length || !sampled(parent[flags+1]) {
		return nil
	}
	trace, err := trace.TraceIDFromHex(parent[id : id+32])
	if err != nil {
		return nil
	}
	return prometheus.Labels{"trace_id": trace.String()}
}

// sampled is the last bit of a hex digit.
func sampled(digit byte) bool {
	switch digit {
	case '1', '3', '5', '7', '9', 'b', 'd', 'f':
		return true
	default:
		return false
	}
}

// exemplars is a histogram that takes exemplars: client_golang's all do.
func exemplars(o prometheus.Observer) prometheus.ExemplarObserver {
	return o.(prometheus.ExemplarObserver)
}
