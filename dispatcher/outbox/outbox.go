// Package outbox is a whole dispatcher in one value: delivery, limits over processes, retention, wake-ups, metrics and status.
// The command `dispatcher run` is this package and a file.
//
//	d, err := outbox.New(pool, dispatcher.Handlers{"orders": handle}, outbox.Config{
//		Store: pgstore.Options{Namespace: "shop", Dispatcher: "orders"}, Registerer: prometheus.DefaultRegisterer,
//	})
//	if err != nil { … }
//	err = d.Run(ctx)
//
// Package engine has delivery alone, for a store of your own.
package outbox

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/client/producer"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters"
	"github.com/outbox-operator/outbox-operator/dispatcher/engine"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/metrics"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/monitor"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/replay"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/retention"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/copysink"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
)

// Config is what a [Dispatcher] does. The zero value of a field means its default.
type Config struct {
	// Config is the engine's. Its rates and its MaxConcurrency are for all processes of one Store.Dispatcher together. Its
	// Observer is the dispatcher's own and stays nil: see Registerer.
	dispatcher.Config
	// Store says where the outbox is and whose events these are. Its Dispatcher, by which processes know each other,
	// defaults to "dispatcher". Its Worker defaults to a random one. Its Fair and Notify follow Fairness and Notify,
	// and its WithoutPayloads the sink.
	Store pgstore.Options
	// Retention removes rows. Defaults to 7 days for delivered ones and 30 days for resolved dead ones.
	Retention Retention
	// Listen makes the connection on which wake-ups of producers arrive; it must not go through PgBouncer in transaction
	// mode. Defaults to none: events wait for the next poll, PollInterval at most.
	Listen func(context.Context) (*pgx.Conn, error)
	// Notify is where dead letters are reported, each once it is written. Run closes it. Defaults to none.
	Notify dispatcher.Sink
	// Objective is what alerts hold the dispatcher to. Defaults to 5 minutes, 99.9 % of the time.
	Objective Objective
	// Registerer gets the metrics. Defaults to none.
	Registerer prometheus.Registerer
	// SinkKind is the label sink of the metrics. Defaults to "handlers".
	SinkKind string
	// Version of the program, for metrics and status. Defaults to "dev".
	Version string
	// DeadLetters serves queries of dead letters on the Handler. Defaults to none.
	DeadLetters deadletters.Source
	// FileProblems are files that cannot be used, for metrics and status. Defaults to none.
	FileProblems func() []status.FileProblem
}

// Objective is how fresh events must be. The zero value of a field means its default.
type Objective struct {
	// Freshness is the time within which an event is to be delivered, from when it is due first. Defaults to 5m.
	Freshness time.Duration
	// Target is the part of the time in which no event is older, from 0 to 1. Defaults to 0.999.
	Target float64
}

// limited reports whether the processes of the dispatcher share a limit that each has a part of, and must soon know how many they are.
func (c Config) limited() bool {
	return c.RateLimit.Events > 0 || len(c.TopicRateLimits) > 0 || c.Concurrency == dispatcher.Auto
}

// Dispatcher delivers the events of one outbox namespace, and keeps its tables small. Make one with [New]. The methods of the
// engine are its own: Pause, Resume, Admit, Wake, Snapshot.
type Dispatcher struct {
	*engine.Dispatcher
	cfg      Config
	pool     *pgxpool.Pool
	store    *pgstore.Store
	copies   []string // the topics that it copies to
	log      *slog.Logger
	outcomes *tally
	hour     monitor.Hour
	sweeper  *retention.Sweeper
	notify   func(context.Context)
	sources  monitor.Sources
	process  monitor.Process
	end      context.CancelFunc // of the queries for metrics and status
}

// New returns a Dispatcher that delivers from the outbox in pool's database to the sink. It connects to nothing, and closes
// neither. Its errors are about cfg, and say what to change.
func New(pool *pgxpool.Pool, sink dispatcher.Sink, cfg Config) (*Dispatcher, error) {
	if cfg.Observer != nil {
		return nil, errors.New("outbox: Config.Observer is set; leave it nil and set Registerer, which gets the metrics")
	}
	cfg.Store.Dispatcher = cmp.Or(cfg.Store.Dispatcher, "dispatcher")
	cfg.Store.Schema = cmp.Or(cfg.Store.Schema, "outbox")
	cfg.Store.Fair, cfg.Store.Notify = cfg.Fairness == dispatcher.FairnessTenant, cfg.Notify != nil
	cfg.SinkKind, cfg.Version = cmp.Or(cfg.SinkKind, "handlers"), cmp.Or(cfg.Version, "dev")
	copier, _ := sink.(*copysink.Sink)
	cfg.Store.WithoutPayloads = copier != nil
	if cfg.Store.Worker == uuid.Nil {
		cfg.Store.Worker = uuid.New()
	}
	if cfg.Registerer == nil {
		cfg.Registerer = prometheus.NewRegistry()
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.FileProblems == nil {
		cfg.FileProblems = func() []status.FileProblem { return nil }
	}
	cfg.Retention = cfg.Retention.withDefaults(cfg.Store.DeleteDelivered)
	observer := metrics.New(cfg.Registerer, cfg.Store.Dispatcher, cfg.Store.Namespace, cfg.SinkKind, cfg.Topics...)
	observer.Build(cfg.Version)
	observer.Objective(cmp.Or(cfg.Objective.Freshness, 5*time.Minute), cmp.Or(cfg.Objective.Target, 0.999))
	d := &Dispatcher{
		cfg: cfg, pool: pool, log: cfg.Logger, store: pgstore.New(pool, cfg.Store), outcomes: &tally{Observer: observer},
		process: monitor.Process{Name: cfg.Store.Dispatcher, Namespace: cfg.Store.Namespace, Topics: cfg.Topics,
			Version: cfg.Version, Worker: cfg.Store.Worker.String(), StartedAt: time.Now()},
	}
	if copier != nil {
		d.copies = copier.Bind(d.store, producer.NewWaker(pool, producer.WakerOptions{Schema: cfg.Store.Schema}).Wake)
	}
	settings := cfg.Config
	settings.Observer = d.outcomes
	var err error
	if d.Dispatcher, err = engine.New(d.store, sink, settings); err != nil {
		return nil, err
	}
	d.watch(observer)
	return d, nil
}

// info is what other processes know of this one.
func (d *Dispatcher) info() pgstore.WorkerInfo {
	return pgstore.WorkerInfo{Dispatcher: d.cfg.Store.Dispatcher, Topics: d.cfg.Topics, Copies: d.copies, Version: d.cfg.Version,
		Ordered: d.cfg.Ordering == dispatcher.OrderingKey, Blocks: d.cfg.OnDead == dispatcher.OnDeadBlock}
}

// Run delivers until ctx ends, and then stops in order, as [engine.Dispatcher.Run] does. It does not end when the database or
// the destination is unreachable. Its error is nil after ctx has ended; any other is a mistake in the program. Run it once.
func (d *Dispatcher) Run(ctx context.Context) error {
	defer d.end()
	defer context.AfterFunc(ctx, d.end)()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var group sync.WaitGroup
	if d.cfg.Listen != nil {
		group.Go(func() {
			pgstore.Listen(ctx, d.cfg.Listen, d.cfg.Store.Schema, d.cfg.Store.Namespace, d.Wake, d.log)
		})
	}
	group.Go(func() { d.outcomes.watch(ctx) })
	group.Go(func() { d.hour.Watch(ctx, d.outcomes.delivered.Load, d.sources.Backlog) })
	group.Go(func() { d.sweeper.Run(ctx) })
	group.Go(func() { d.notify(ctx) })
	d.SetRateShare(0, time.Time{}) // until the second heartbeat
	running, ended := context.WithCancel(context.WithoutCancel(ctx))
	group.Go(func() { d.heartbeat(running, d.info()) })
	group.Go(func() { d.setRight(running) })
	err := d.Dispatcher.Run(ctx)
	ended()
	cancel()
	group.Wait()
	return err
}

// Handler serves /healthz, /readyz, /status, /metrics of the gatherer, and dead letters where Config.DeadLetters is set. The
// whole status and dead letters are for callers on this machine alone.
func (d *Dispatcher) Handler(gatherer prometheus.Gatherer) http.Handler {
	return monitor.Handler(d.process, d.sources, gatherer)
}

// Replays puts dead events back, or marks them as handled: a set of dead letters, chosen by a filter, at a rate (CONTRACT C-42).
// Its methods are DryRun, Begin, Run, Stop and those that list what was done. Make one with [NewReplays].
type Replays = replay.Replays

// ReplayOptions say where the outbox of a [Replays] is. The zero value of a field means its default.
type ReplayOptions = replay.Options

// ReplayRunOptions say how Replays.Run moves what Replays.Begin has chosen.
type ReplayRunOptions = replay.RunOptions

// NewReplays returns a Replays over a pgx pool or connection, whose login needs what `dispatcher migrate grants --for replay`
// prints. It does not connect.
func NewReplays(db replay.DB, opts ReplayOptions) *Replays { return replay.New(db, opts) }
