package spec

import (
	"encoding/json"
	"fmt"
	"regexp"
	"time"
	"unicode/utf8"

	"sigs.k8s.io/yaml"
)

// YAML writes a value as YAML, with the names of its JSON, so that whoever reads it gets the same texts. A number of more
// than 17 digits loses the others. It fails as [json.Marshal] does.
func YAML(value any) ([]byte, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	return yaml.JSONToYAML(Escaped(text)) // which reads it as YAML
}

// odd are the characters that JSON has as they are, although terminals take some for commands, and YAML refuses most.
var odd = regexp.MustCompile(`[\x{7f}-\x{9f}\x{feff}\x{fffe}\x{ffff}]`)

// Escaped makes escapes of what terminals or YAML do not take of a JSON text, in whose strings alone it is.
func Escaped(text []byte) []byte {
	return odd.ReplaceAllFunc(text, func(char []byte) []byte {
		r, _ := utf8.DecodeRune(char)
		return fmt.Appendf(nil, `\u%04x`, r)
	})
}

// ApplyDefaults sets the fields that are not set to the defaults in their comments.
func (c *Config) ApplyDefaults() {
	setDefault(&c.Database.Schema, "outbox")
	if c.Database.CAFile != "" {
		setDefault(&c.Database.SSLMode, "VerifyFull")
	}
	c.Database.Connection.applyDefaults()
	if m := c.Database.M10; m != nil {
		setDefault(&m.Topic, "m10")
		setDefault(&m.Publish, M10Insert)
	}
	d := &c.Delivery
	setDefault(&d.Lease, Duration(DefaultLease))
	setDefault(&d.PollInterval, Duration(DefaultPollInterval))
	setDefault(&d.BatchSize, DefaultBatchSize)
	setDefault(&d.Concurrency, DefaultConcurrency)
	setDefault(&d.MaxConcurrency, DefaultMaxConcurrency)
	setDefault(&d.MaxInFlightBytes, DefaultMaxBytes)
	setDefault(&d.MaxAttempts, DefaultMaxAttempts)
	setDefault(&d.Ordering, OrderingNone)
	setDefault(&d.Fairness, FairnessNone)
	setDefault(&d.OnDead, OnDeadContinue)
	setDefault(&d.WakeUp, WakeUpNone)
	setDefault(&d.Timeout, Duration(DefaultDeliveryTimeout))
	setDefault(&d.GracePeriod, Duration(DefaultGracePeriod))
	d.defaultRates()
	setDefault(&c.State, Running)
	setDefault(&c.Server.Address, "127.0.0.1:8080")
	setDefault(&c.Log.Level, "Info")
	setDefault(&c.Message.Format, FormatCloudEvents)
	d.Backoff.ApplyDefaults()
	c.Retention.applyDefaults()
	c.Journal.applyDefaults()
	if c.Message.SchemaRegistry != nil {
		c.Message.SchemaRegistry.ApplyDefaults()
	}
	c.Sink.ApplyDefaults()
}

func (c *Connection) applyDefaults() {
	if c != nil && c.PortFile == "" {
		setDefault(&c.Port, 5432)
	}
}

// ApplyDefaults fills in what is not set, by the strategy.
func (b *Backoff) ApplyDefaults() {
	setDefault(&b.Strategy, BackoffExponential)
	switch b.Strategy {
	case BackoffLinear:
		setDefault(&b.Base, Duration(time.Minute))
		setDefault(&b.Max, Duration(time.Hour))
	case BackoffMultiplier:
		setDefault(&b.Multiplier, "2")
		if b.JitterPercent == nil {
			percent := int32(25)
			b.JitterPercent = &percent
		}
		fallthrough
	case BackoffExponential:
		setDefault(&b.Base, Duration(DefaultBackoffBase))
		setDefault(&b.Max, Duration(DefaultBackoffMax))
	}
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}
