package config

import "time"

// The defaults of a dispatcher's settings: of the file, of the OutboxDispatcher resource (a test compares them), and of
// the engine's Config.
const (
	DefaultLease          = 30 * time.Second
	DefaultPollInterval   = time.Second
	DefaultBatchSize      = 500
	DefaultConcurrency    = 16
	DefaultMaxConcurrency = 256
	// DefaultMaxAttempts and the default backoff together try a row for 4 to 8 hours, by chance, before it is
	// dead: longer than most incidents of a destination last (CONTRACT C-32).
	DefaultMaxAttempts     = 20
	DefaultBackoffBase     = time.Second
	DefaultBackoffMax      = time.Hour
	DefaultDeliveryTimeout = 5 * time.Minute
	DefaultGracePeriod     = 30 * time.Second
	DefaultMaxBytes        = 32 << 20
)
