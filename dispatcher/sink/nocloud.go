//go:build nocloud

package sink

import (
	"fmt"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
)

func cloud(s spec.Sink, _ func(*dispatcher.Event) (string, error)) (dispatcher.Sink, error) {
	return nil, fmt.Errorf("sink.%s: this binary has no SDK of a cloud; build it without the tag nocloud", s.Kind())
}
