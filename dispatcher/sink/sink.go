// Package sink makes the sink that a configuration asks for. Each kind is a package of its own;
// package cloudevent says which attributes their messages carry, and sinktest what they must do.
package sink

import (
	"errors"
	"io"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/config"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/httpsink"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/kafkasink"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/logsink"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/reason"
)

// New returns the sink that is set in cfg, which must be valid. The log sink writes to log.
func New(cfg config.Config, log io.Writer) (dispatcher.Sink, error) {
	switch s := cfg.Sink; s.Kind() {
	case "http":
		return httpsink.New(*s.HTTP)
	case "kafka":
		return kafkasink.New(*s.Kafka, nil)
	case "log":
		return logsink.New(*s.Log, log), nil
	default:
		return nil, errors.New("sink: nothing is set; set one of its members, such as http")
	}
}

// Reason returns one word for a failure of Deliver or Probe: ConnectionFailed, CertificateInvalid,
// AuthenticationFailed or Refusing, and "" for nil. Package reason says what each means.
func Reason(err error) string { return reason.Of(err) }
