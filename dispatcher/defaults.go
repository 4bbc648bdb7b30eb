package dispatcher

import "time"

// The defaults of [Config]. Those of the dispatcher's file and of the OutboxDispatcher resource are the
// same: package config takes them from here, and a test compares the resource's.
const (
	DefaultLease        = 30 * time.Second
	DefaultPollInterval = time.Second
	DefaultBatchSize    = 500
	DefaultConcurrency  = 16
	// DefaultMaxAttempts and [DefaultBackoff] together try a row for 4 to 8 hours, by chance, before it is
	// dead: longer than most incidents of a destination last (CONTRACT C-32).
	DefaultMaxAttempts     = 20
	DefaultBackoffBase     = time.Second
	DefaultBackoffMax      = time.Hour
	DefaultDeliveryTimeout = 5 * time.Minute
	DefaultGracePeriod     = 30 * time.Second
	DefaultMaxBytes        = 32 << 20
)
