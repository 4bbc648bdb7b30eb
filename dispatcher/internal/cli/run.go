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
)

func runCommand(version string) *cobra.Command {
	var file source
	var own ownSettings
	var listen string
	cmd := &cobra.Command{
		Use: "run -f FILE", Short: "Deliver events until SIGTERM or SIGINT", Args: cobra.NoArgs,
		Long: `Deliver events until SIGTERM or SIGINT, then finish what is in flight within gracePeriod.

It starts and continues while the database or the destination is unreachable, and while the schema is missing:
/readyz and /status say so. Standard output is for the log sink; logs go to standard error.`,
		RunE: work(func(cmd *cobra.Command) error {
			cfg, err := load(file, true)
			if err != nil {
				return err
			}
			own.set(&cfg)
			if cfg.Delivery.ConsumerPolicy == spec.ConsumersVerified && cfg.VerifiedTypesFile == "" {
				return refused{errors.New("spec.delivery.consumerPolicy: Verified needs the event types with a verified consumer, which the operator knows; name a file that lists them with --verified-types-file")}
			}
			return run(cmd, version, cfg, listen)
		}),
	}
	fileFlag(cmd, &file)
	own.flags(cmd)
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:8080", "the address of health, metrics and status")
	return cmd
}

// ownSettings are the files that one process has for itself, in addition to the objects.
type ownSettings struct{ stateFile, verifiedTypesFile string }

func (o *ownSettings) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.stateFile, "state-file", "", "a file that holds Running or Paused, and overrides spec.state; it is read again each second")
	cmd.Flags().StringVar(&o.verifiedTypesFile, "verified-types-file", "", "a file that lists the event types which are delivered, one a line, or their beginnings with *; it is read again each second")
}

func (o ownSettings) set(cfg *spec.Config) {
	cfg.StateFile, cfg.VerifiedTypesFile = o.stateFile, o.verifiedTypesFile
}

// run serves first and then delivers, so that the server responds from start to end.
func run(cmd *cobra.Command, version string, cfg spec.Config, listen string) error {
	tuneMemory()
	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	e, err := newProcess(ctx, version, cfg, registry, cmd.OutOrStdout(), cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	defer e.close(context.WithoutCancel(ctx))
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return fmt.Errorf("--listen: %w; choose a free port", err)
	}
	server := &http.Server{
		Handler:           e.Handler(registry),
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
	group.Go(func() { e.reread(ctx) })
	err = e.Run(ctx)
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
	var file source
	var own ownSettings
	var n int
	cmd := &cobra.Command{
		Use: "once -f FILE [-n N]", Short: "Deliver up to N events that are due, then end", Args: cobra.NoArgs,
		Long: `Deliver up to N events that are due, and end when no more are. It does not wait for a database or a
destination that is unreachable. The exit code is 1 unless every delivery succeeded.`,
		RunE: work(func(cmd *cobra.Command) error {
			cfg, err := load(file, true)
			if err != nil {
				return err
			}
			if n < 1 {
				return fmt.Errorf("-n is %d; set it to 1 or more", n)
			}
			own.set(&cfg)
			return once(cmd, version, cfg, n)
		}),
	}
	fileFlag(cmd, &file)
	own.flags(cmd)
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
	fmt.Fprintf(cmd.ErrOrStderr(), "delivered %d, failed %d, dead %d, expired %d, released %d, lost %d, refused %d\n", o.Delivered, o.Failed, o.Dead, o.Expired, o.Released, o.Lost, o.Refused)
	if o.Refused > 0 {
		return fmt.Errorf("the database refused the outcomes of %d events, which are delivered again when their leases end; the log says why", o.Refused)
	}
	if o.Failed+o.Dead+o.Released > 0 {
		return errors.New("not every event was delivered; " + e.Snapshot().LastError)
	}
	return nil
}
