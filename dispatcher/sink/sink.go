// Package sink makes the sink that a configuration asks for. Each kind is a package of its own;
// package cloudevent says which attributes their messages carry, and sinktest what they must do.
package sink

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/config"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/httpsink"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/kafkasink"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/logsink"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/reason"
)

// New returns the sink that is set in cfg; exactly one must be. The log sink writes to log.
func New(cfg config.Sink, log io.Writer) (dispatcher.Sink, error) {
	var set []string
	if cfg.HTTP != nil {
		set = append(set, "http")
	}
	if cfg.Kafka != nil {
		set = append(set, "kafka")
	}
	if cfg.Log != nil {
		set = append(set, "log")
	}
	switch {
	case len(set) == 0:
		return nil, errors.New("sink: nothing is set; set http, kafka or log")
	case len(set) > 1:
		return nil, fmt.Errorf("sink: %s are set; keep one of them", strings.Join(set, " and "))
	case cfg.HTTP != nil:
		return httpsink.New(*cfg.HTTP)
	case cfg.Kafka != nil:
		return kafkasink.New(*cfg.Kafka)
	default:
		return logsink.New(*cfg.Log, log), nil
	}
}

// Reason returns one word for a failure of Deliver or Probe: ConnectionFailed, CertificateInvalid,
// AuthenticationFailed or Refusing, and "" for nil. Package reason says what each means.
func Reason(err error) string { return reason.Of(err) }
