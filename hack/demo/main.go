// demo plays the main job for a person to watch: see package scenario.
//
//	demo [-orders N] [-keep] kubernetes   on a real cluster, which it brings up
//	demo [-orders N] [-keep] local        with plain processes
//	demo consumer ADDRESS                 the consumer, which the demo starts as its own process
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/outbox-operator/outbox-operator/hack/e2e/scenario"
	"github.com/outbox-operator/outbox-operator/hack/internal/daemon"
	"github.com/outbox-operator/outbox-operator/hack/servers/postgres"
)

func main() {
	d := &demo{started: time.Now()}
	flag.IntVar(&d.orders, "orders", 24_000, "how many orders the shop's service tries to commit")
	flag.BoolVar(&d.keep, "keep", false, "leave everything running until Ctrl-C, and say how to look around")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	switch flag.Arg(0) {
	case "consumer":
		err = consume(ctx, flag.Arg(1))
	case "kubernetes":
		err = d.run(ctx, d.kubernetes)
	case "local":
		err = d.run(ctx, d.local)
	default:
		flag.Usage()
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "\ndemo:", err)
		os.Exit(1)
	}
}

type demo struct {
	orders  int
	keep    bool
	started time.Time
	step    int
	// cleanup is what to undo at the end, last first.
	cleanup []func()
}

// say announces a step.
func (d *demo) say(format string, args ...any) {
	d.step++
	fmt.Printf("\n%3.0fs  %d. %s\n\n", time.Since(d.started).Seconds(), d.step, fmt.Sprintf(format, args...))
}

func (d *demo) defers(f func()) { d.cleanup = append(d.cleanup, f) }

// run plays a variant of the demo and cleans up behind it.
func (d *demo) run(ctx context.Context, play func(context.Context) error) error {
	defer func() {
		for i := len(d.cleanup) - 1; i >= 0; i-- {
			d.cleanup[i]()
		}
		fmt.Printf("\n%3.0fs  Everything that the demo started is gone.\n", time.Since(d.started).Seconds())
	}()
	if err := play(ctx); err != nil {
		return err
	}
	if d.keep {
		fmt.Println("\nLeft running, until Ctrl-C.")
		<-ctx.Done()
	}
	return nil
}

// shop starts PostgreSQL and makes the shop's database.
func (d *demo) shop(ctx context.Context, listen ...string) (*postgres.Server, *scenario.Shop, error) {
	d.say("PostgreSQL: a temporary server, a database \"shop\", and three logins: owner, dispatcher, application")
	var srv *postgres.Server
	err := await(ctx, os.Stdout, noLimit, "PostgreSQL: its packages, if they are missing, and its start", func(ctx context.Context) (err error) {
		srv, err = postgres.Start(ctx, postgres.Options{Listen: append([]string{"127.0.0.1"}, listen...)})
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	d.defers(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := srv.Stop(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "demo:", err)
		}
	})
	shop, err := scenario.NewShop(ctx, "shop", srv.DSN)
	return srv, shop, err
}

// endpoint is where the consumer is reached from here, and its port.
type endpoint struct{ url, port string }

// consumer starts the consumer as a process of its own.
func (d *demo) consumer(ctx context.Context, host string) (endpoint, error) {
	self, err := os.Executable()
	if err != nil {
		return endpoint{}, err
	}
	address, err := freeAddress(host)
	if err != nil {
		return endpoint{}, err
	}
	if err := d.start("consumer", self, "consumer", address); err != nil {
		return endpoint{}, err
	}
	_, port, _ := net.SplitHostPort(address)
	at := endpoint{url: "http://" + address, port: port}
	return at, await(ctx, os.Stdout, time.Minute, "the consumer to respond", func(ctx context.Context) error {
		return scenario.Until(ctx, "the consumer responds", func() (bool, string) {
			_, err := scenario.Deliveries(ctx, at.url)
			return err == nil, fmt.Sprint(err)
		})
	})
}

// freeAddress is a port of the host that is unused now.
func freeAddress(host string) (string, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return "", fmt.Errorf("find a free port of %s: %w", host, err)
	}
	return l.Addr().String(), l.Close()
}

// start runs a program until the end of the demo.
func (d *demo) start(name string, program string, args ...string) error {
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	p, err := daemon.Start(cmd, nil, syscall.SIGTERM)
	if err != nil {
		return fmt.Errorf("start the %s: %w", name, err)
	}
	d.defers(func() { p.End(syscall.SIGTERM) })
	return nil
}

// play plays the story on a stage, and prints the ledger.
func (d *demo) play(ctx context.Context, stage scenario.Stage, shop *scenario.Shop, appDSN, consumerURL string) error {
	plan := scenario.Plan{Orders: d.orders, Writers: 8, RollbackPercent: 10, ResendPercent: 5}
	d.say("The shop's service: %d orders by %d writers, each order and its event in one transaction; %d %% roll back, %d %% are sent twice with a dedupe key, and one is poisoned: the consumer refuses it",
		plan.Orders, plan.Writers, plan.RollbackPercent, plan.ResendPercent)
	story := &scenario.Story{Stage: stage, Shop: shop, AppDSN: appDSN, ConsumerURL: consumerURL, Plan: plan, Out: os.Stdout}
	var ledger *scenario.Ledger
	err := await(ctx, os.Stdout, 15*time.Minute, "every event to be delivered or dead", func(ctx context.Context) (err error) {
		ledger, err = story.Play(ctx)
		return err
	})
	if err != nil {
		return err
	}
	d.say("The ledger: what the service committed, against what the consumer got")
	ledger.Print(os.Stdout)
	return ledger.Err()
}

// consume is the consumer's process.
func consume(ctx context.Context, address string) error {
	server := &http.Server{Addr: address, Handler: &scenario.Consumer{Work: 20 * time.Millisecond}, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		<-ctx.Done()
		_ = server.Close() // the demo is over
	}()
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// runs a program that explains itself on standard error.
func runs(ctx context.Context, program string, args ...string) error {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(program), err)
	}
	return nil
}

// noLimit is for what builds or installs: how long that takes depends on the machine, and Ctrl-C ends it.
const noLimit time.Duration = 0

// heartbeat is the time between two lines of a step that takes long.
const heartbeat = 30 * time.Second

// await runs one step and, while that lasts, says again and again what it waits for. A step that is not done
// within its limit fails, and the error names the step.
func await(ctx context.Context, out io.Writer, limit time.Duration, what string, step func(context.Context) error) error {
	begin := time.Now()
	late := fmt.Errorf("not done after %s", limit)
	timed, cancel := ctx, context.CancelFunc(func() {})
	if limit != noLimit {
		timed, cancel = context.WithTimeoutCause(ctx, limit, late)
	}
	defer cancel()

	done := make(chan error, 1)
	go func() { done <- step(timed) }()
	tick := time.NewTicker(heartbeat)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			switch {
			case err == nil:
				return nil
			case ctx.Err() != nil:
				return fmt.Errorf("interrupted while waiting for %s", what)
			case errors.Is(context.Cause(timed), late):
				return fmt.Errorf("wait for %s: %w: %w", what, late, err)
			}
			return err
		case <-tick.C:
			fmt.Fprintf(out, "   still waiting for %s (%s)\n", what, time.Since(begin).Round(time.Second))
		}
	}
}
