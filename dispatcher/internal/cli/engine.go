package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/sdk/trace"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/database"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/otlp"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/pipeline"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/tracing"
	"github.com/outbox-operator/outbox-operator/dispatcher/outbox"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink"
)

// process is a running dispatcher and what it is made of.
type process struct {
	*outbox.Dispatcher
	pipeline *pipeline.Pipeline
	worker   uuid.UUID
	pool     *pgxpool.Pool
	sink     dispatcher.Sink
	state    *stateFile            // nil without one
	verified *typesFile            // likewise
	spans    *trace.TracerProvider // nil without tracing
	log      *slog.Logger
}

// newProcess makes a process that logs to logs, and whose log sink writes to events. It connects to
// nothing: what is wrong with the database or the destination is for the engine to meet.
func newProcess(ctx context.Context, version string, cfg spec.Config, registry prometheus.Registerer, events, logs io.Writer) (*process, error) {
	worker, err := uuid.NewV7()
	if err != nil {
		return nil, fmt.Errorf("make a worker id: %w", err)
	}
	e := &process{worker: worker, log: newLogger(cfg, logs).With("dispatcher", cfg.Name, "worker", worker)}
	if e.pipeline, err = sink.Pipeline(cfg); err != nil {
		return nil, refused{err}
	}
	if e.sink, err = sink.Behind(e.pipeline, cfg, events); err != nil {
		return nil, refused{err}
	}
	if err := e.trace(ctx, version, cfg); err != nil {
		return nil, refused{err}
	}
	if e.pool, err = database.Pool(ctx, cfg.Database, cfg.Name); err != nil {
		return nil, refused{err}
	}
	settings := outbox.Config{
		Config: settings(cfg), Store: storeOptions(cfg, worker), Retention: sweep(cfg), Registerer: registry, SinkKind: cfg.Sink.Kind(), Version: version,
		Objective: outbox.Objective{Freshness: cfg.Objective.Freshness.D(), Target: cfg.Objective.Ratio()}, DeadLetters: reader(cfg, podTimeout), FileProblems: e.fileProblems,
	}
	settings.Logger = e.log
	if cfg.Delivery.WakeUp == spec.WakeUpListen {
		settings.Listen = connector(cfg)
	}
	if settings.Notify, err = address(cfg); err == nil {
		e.Dispatcher, err = outbox.New(e.pool, e.sink, settings)
	}
	if err != nil {
		e.close(ctx)
		return nil, refused{err}
	}
	if cfg.StateFile != "" {
		e.state = &stateFile{watchedFile: watchedFile{field: "--state-file", path: cfg.StateFile, log: e.log}, engine: e, last: cfg.State}
		e.state.refresh()
	}
	if cfg.VerifiedTypesFile != "" {
		e.Admit(func(string) bool { return false }) // until the file was read
		e.verified = &typesFile{watchedFile: watchedFile{field: "--verified-types-file", path: cfg.VerifiedTypesFile, log: e.log}, engine: e}
		e.verified.refresh()
	}
	return e, nil
}

// settings are the engine's settings of the file: all of its Config but Logger and Observer.
func settings(cfg spec.Config) dispatcher.Config {
	return dispatcher.Config{
		Topics: cfg.Topics, Lease: cfg.Delivery.Lease.D(), PollInterval: cfg.Delivery.PollInterval.D(), BatchSize: int(cfg.Delivery.BatchSize),
		Concurrency: concurrency(cfg.Delivery.Concurrency), MaxConcurrency: int(cfg.Delivery.MaxConcurrency), MaxBytes: cfg.Delivery.MaxInFlightBytes, MaxAttempts: int(cfg.Delivery.MaxAttempts), Backoff: backoff(cfg.Delivery.Backoff),
		Ordering: dispatcher.Ordering(cfg.Delivery.Ordering), Fairness: dispatcher.Fairness(cfg.Delivery.Fairness), OnDead: dispatcher.OnDead(cfg.Delivery.OnDead),
		TenantRateLimit: rate(cfg.Delivery.TenantRateLimit),
		RateLimit:       rate(cfg.Delivery.RateLimit), TopicRateLimits: topicRates(cfg.Delivery.TopicRateLimits),
		DeliveryTimeout: cfg.Delivery.Timeout.D(), GracePeriod: cfg.Delivery.GracePeriod.D(), Paused: cfg.State == spec.Paused,
	}
}

// sweep is the retention of the file.
func sweep(cfg spec.Config) outbox.Retention {
	r := cfg.Retention
	return outbox.Retention{Delivered: r.Delivered.D(), DeadResolved: r.DeadResolved.D(), DeadUnresolved: r.DeadUnresolved.D(), Own: r.Scope == spec.ScopeDispatcher}
}

// concurrency is the engine's for that of the file.
func concurrency(c spec.Concurrency) int {
	if c == spec.Auto {
		return dispatcher.Auto
	}
	return int(c)
}

// storeOptions are the store's settings of the file.
func storeOptions(cfg spec.Config, worker uuid.UUID) pgstore.Options {
	return pgstore.Options{
		Schema: cfg.Database.Schema, Namespace: cfg.Namespace, Worker: worker, DeleteDelivered: cfg.Retention.DeletesAtAck(), Notify: cfg.Notify != nil,
		Dispatcher: cfg.Name, ExpireAfter: cfg.Delivery.ExpireAfter.D(), Fair: cfg.Delivery.Fairness == spec.FairnessTenant,
	}
}

// trace records a span for each delivery, if the environment enables it.
func (e *process) trace(ctx context.Context, version string, cfg spec.Config) (err error) {
	e.spans, err = otlp.NewProvider(ctx, otlp.Process{Dispatcher: cfg.Name, Version: version, Worker: e.worker.String()}, e.log)
	if e.spans != nil && cfg.Sink.Copy == nil { // a copy is delivered later, and has its span then
		e.sink = tracing.Sink(e.sink, e.spans, tracing.System(cfg.Sink.Kind()))
	}
	return err
}

// connector makes connections that no pool has.
func connector(cfg spec.Config) func(context.Context) (*pgx.Conn, error) {
	return func(ctx context.Context) (*pgx.Conn, error) { return database.Connect(ctx, cfg.Database, cfg.Name) }
}

func (e *process) close(ctx context.Context) {
	if err := e.sink.Close(ctx); err != nil {
		e.log.Warn("the sink did not close cleanly", "error", err)
	}
	e.pool.Close()
	if e.spans != nil {
		ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		if err := e.spans.Shutdown(ctx); err != nil {
			e.log.Warn("the last spans may not have been sent", "error", err)
		}
	}
}

func newLogger(cfg spec.Config, w io.Writer) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(cmp.Or(cfg.Pods.Log.Level, spec.LogInfo))); err != nil {
		level = slog.LevelInfo // validated before
	}
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level}))
}

// rate is the engine's word for a rate limit.
func rate(r *spec.RateLimit) dispatcher.Rate {
	if r == nil {
		return dispatcher.Rate{}
	}
	return dispatcher.Rate{Events: int(r.Events), Period: r.Period.D()}
}

func topicRates(limits []spec.TopicRateLimit) map[string]dispatcher.Rate {
	if len(limits) == 0 {
		return nil
	}
	rates := map[string]dispatcher.Rate{}
	for _, l := range limits {
		rates[l.Topic] = dispatcher.Rate{Events: int(l.Events), Period: cmp.Or(l.Period.D(), time.Second)}
	}
	return rates
}

// backoff is the policy that a validated configuration names.
func backoff(b spec.Backoff) dispatcher.Backoff {
	text, err := json.Marshal(b)
	if err != nil {
		panic(err) // plain data
	}
	policy, _ := dispatcher.ParseBackoff(text)
	return policy
}

const (
	// gcPercent lets the heap grow to two and a quarter times of what is live. At 150 and more a dispatcher
	// at full speed now and then takes more than 64 MiB (61 to 65; at 125 58 to 62), and at 100 it takes
	// a tenth more CPU time.
	gcPercent = 125
	// memoryLimit makes the collector work harder before rows with large payloads add up to more.
	memoryLimit = 160 << 20
)

// tuneMemory sets the collector for an engine at full speed, unless GOGC or GOMEMLIMIT say otherwise.
func tuneMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(softLimit("/sys/fs/cgroup/memory.max"))
	}
}

// softLimit is memoryLimit, or three quarters of what the container may take, as the file says, if that
// is less: the rest is for the program itself.
func softLimit(file string) int64 {
	text, _ := os.ReadFile(file) // outside of a container there is none, and without a limit it says max
	limit, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return memoryLimit
	}
	return min(memoryLimit, limit/4*3)
}
