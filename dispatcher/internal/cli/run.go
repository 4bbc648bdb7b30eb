package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/journal"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/metrics"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/monitor"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
)

func runCommand(version string) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use: "run -f FILE", Short: "Deliver events until SIGTERM or SIGINT", Args: cobra.NoArgs,
		Long: `Deliver events until SIGTERM or SIGINT, then finish what is in flight within gracePeriod.

It starts and continues while the database or the destination is unreachable, and while the schema is missing:
/readyz and /status say so. Standard output is for the log sink; logs go to standard error.`,
		RunE: work(func(cmd *cobra.Command) error {
			cfg, err := load(file, spec.Config.Validate)
			if err != nil {
				return err
			}
			return run(cmd, version, cfg)
		}),
	}
	fileFlag(cmd, &file)
	return cmd
}

// run serves first and then delivers, so that the server responds from start to end.
func run(cmd *cobra.Command, version string, cfg spec.Config) error {
	tuneMemory()
	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	observer := metrics.New(registry, cfg.Name, cfg.Namespace, cfg.Sink.Kind(), cfg.Topics...)
	observer.Build(version)
	outcomes := &tally{Observer: observer}
	e, err := newProcess(ctx, version, cfg, outcomes, cmd.OutOrStdout(), cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	defer e.close(context.WithoutCancel(ctx))
	info := pgstore.WorkerInfo{Dispatcher: cfg.Name, Topics: cfg.Topics, Version: version,
		Ordered: cfg.Delivery.Ordering == spec.OrderingKey, Blocks: cfg.Delivery.OnDead == spec.OnDeadBlock}
	sources := monitor.Sources{
		Snapshot:          e.Snapshot,
		PerSecond:         outcomes.perSecond,
		Backlog:           monitor.NewBacklog(ctx, e.store, cfg, e.log).Get,
		OldestTransaction: monitor.NewOldestTransaction(ctx, e.store.OldestTransaction, e.log).Get,
		Sharing:           monitor.NewSharing(ctx, func(ctx context.Context) ([]string, error) { return e.store.Sharing(ctx, info) }, e.log).Get,
		Data:              monitor.NewData(ctx, func(ctx context.Context) (dispatcher.Data, error) { return e.store.Data(ctx, info) }, e.log).Get,
		Journal:           monitor.NewJournal(ctx, journal.NewWatch(e.pool, journal.Options{Schema: cfg.Database.Schema, Namespace: cfg.Namespace, Topics: cfg.Topics}).Look, e.log).Get,
		FileProblems:      e.fileProblems,
		DeadLetters:       reader(cfg, podTimeout),
	}
	sweeper := e.newSweeper(cfg, sources.Backlog, observer)
	e.watchRetention(ctx, sweeper, &sources, observer)
	notifyAddress, err := e.newNotifier(ctx, cfg, &sources, observer)
	if err != nil {
		return refused{err}
	}
	observer.Watch(sources.Snapshot, sources.Backlog, sources.OldestTransaction, monitor.NewSizes(ctx, e.store.Sizes, e.log).Get, func() int { return len(e.fileProblems()) })
	observer.WatchData(sources.Data)
	observer.WatchJournal(sources.Journal)

	listener, err := net.Listen("tcp", cfg.Server.Address)
	if err != nil {
		return fmt.Errorf("server.address: %w; choose a free port", err)
	}
	process := monitor.Process{Config: cfg, Version: version, Worker: e.worker.String(), StartedAt: time.Now()}
	server := &http.Server{
		Handler:           monitor.Handler(process, sources, registry),
		ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute,
	}
	e.log.Info("starting", "version", version, "namespace", cfg.Namespace, "topics", cfg.Topics, "paused", e.Snapshot().Paused, "address", listener.Addr().String())

	var group sync.WaitGroup
	var serverErr error
	group.Go(func() {
		if serverErr = server.Serve(listener); errors.Is(serverErr, http.ErrServerClosed) {
			serverErr = nil
		}
		cancel() // without its server a dispatcher cannot be seen: end
	})
	if cfg.Delivery.WakeUp == spec.WakeUpListen {
		group.Go(func() { e.listen(ctx, cfg) })
	}
	group.Go(func() { e.reread(ctx) })
	group.Go(func() { outcomes.watch(ctx) })
	group.Go(func() { sweeper.Run(ctx) })
	group.Go(func() { notifyAddress(ctx) })
	e.SetRateShare(0, time.Time{}) // until the second heartbeat
	running, ended := context.WithCancel(context.WithoutCancel(ctx))
	defer ended()
	group.Go(func() { e.heartbeat(running, info, outcomes) })
	err = e.Run(ctx)
	ended()
	stop, cancelStop := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancelStop()
	if server.Shutdown(stop) != nil {
		_ = server.Close() // a client that does not leave
	}
	group.Wait()
	e.log.Info("stopped")
	return errors.Join(err, serverErr)
}

func onceCommand(version string) *cobra.Command {
	var file string
	var n int
	cmd := &cobra.Command{
		Use: "once -f FILE [-n N]", Short: "Deliver up to N events that are due, then end", Args: cobra.NoArgs,
		Long: `Deliver up to N events that are due, and end when no more are. It does not wait for a database or a
destination that is unreachable. The exit code is 1 unless every delivery succeeded.`,
		RunE: work(func(cmd *cobra.Command) error {
			cfg, err := load(file, spec.Config.Validate)
			if err != nil {
				return err
			}
			if n < 1 {
				return fmt.Errorf("-n is %d; set it to 1 or more", n)
			}
			return once(cmd, version, cfg, n)
		}),
	}
	fileFlag(cmd, &file)
	cmd.Flags().IntVarP(&n, "number", "n", 1, "how many events to claim at most")
	return cmd
}

func once(cmd *cobra.Command, version string, cfg spec.Config, n int) error {
	ctx := cmd.Context()
	e, err := newProcess(ctx, version, cfg, nil, cmd.OutOrStdout(), cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	defer e.close(context.WithoutCancel(ctx))
	o, err := e.RunOnce(ctx, n)
	if err != nil {
		return err
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "delivered %d, failed %d, dead %d, released %d, lost %d, refused %d\n", o.Delivered, o.Failed, o.Dead, o.Released, o.Lost, o.Refused)
	if o.Refused > 0 {
		return fmt.Errorf("the database refused the outcomes of %d events, which are delivered again when their leases end; the log says why", o.Refused)
	}
	if o.Failed+o.Dead+o.Released > 0 {
		return errors.New("not every event was delivered; " + e.Snapshot().LastError)
	}
	return nil
}
