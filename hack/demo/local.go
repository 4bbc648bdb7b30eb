package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/hack/e2e/scenario"
	"github.com/outbox-operator/outbox-operator/hack/internal/daemon"
)

// local plays the story with dispatcher processes, and the file that kubernetes applies.
func (d *demo) local(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "outbox-demo-")
	if err != nil {
		return err
	}
	d.defers(func() { _ = os.RemoveAll(dir) })
	d.say("The dispatcher, built from this checkout")
	binary := filepath.Join(dir, "dispatcher")
	err = await(ctx, os.Stdout, noLimit, "the build of the dispatcher", func(ctx context.Context) error {
		return runs(ctx, "go", "build", "-tags", "nocloud,grpcnotrace", "-ldflags", "-s -w", "-o", binary, "./dispatcher/cmd/dispatcher")
	})
	if err != nil {
		return err
	}
	srv, shop, err := d.shop(ctx)
	if err != nil {
		return err
	}
	d.say("A consumer, in a process of its own, which counts what it gets")
	consumer, err := d.consumer(ctx, "127.0.0.1")
	if err != nil {
		return err
	}

	manifests := scenario.Manifests{
		Namespace: "shop", Name: "orders", Replicas: 2, SinkURL: consumer.url,
		DispatcherDSN: shop.DSN(shop.Dispatcher, "127.0.0.1", srv.Port),
		OwnerDSN:      shop.DSN(shop.Owner, "127.0.0.1", srv.Port),
	}
	d.say("The logins in a folder, the OutboxDispatcher that a cluster takes too, the schema, and two dispatcher processes")
	stage, err := d.dispatchers(ctx, dir, binary, manifests)
	if err != nil {
		return err
	}
	if err := shop.GrantApp(ctx); err != nil {
		return err
	}
	if err := d.play(ctx, stage, shop, shop.DSN(shop.App, "127.0.0.1", srv.Port), consumer.url); err != nil {
		return err
	}
	deadLetters, err := scenario.DeadLetters(ctx, shop.Admin)
	if err != nil {
		return err
	}
	d.say("What is left for a person: the poisoned event, in the table outbox_dead_letters")
	fmt.Print(scenario.Indent(deadLetters))
	if d.keep {
		fmt.Println("\n  A console starts too, in which the poisoned event can be replayed: its link is below.")
		if err := d.console(ctx, binary, filepath.Join(dir, "orders.yaml"), shop.Dispatcher.User); err != nil {
			return err
		}
		fmt.Printf("\n  To look around:\n\n    curl -s %s/status\n    curl -s %s/metrics\n    psql %q\n", stage.all[1].url, stage.all[1].url, shop.Admin)
	}
	return nil
}

// console serves the console of the dispatchers' file, whose login may replay then, and prints its link.
func (d *demo) console(ctx context.Context, binary, file, login string) error {
	if err := runs(ctx, binary, "migrate", "grants", "--role", login, "--for", "replay", "--apply", "-f", file); err != nil {
		return err
	}
	cmd := exec.Command(binary, "ui", "-f", file)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	console, err := daemon.Start(cmd, nil, syscall.SIGTERM)
	if err != nil {
		return fmt.Errorf("start the console: %w", err)
	}
	d.defers(func() { console.Signal(syscall.SIGTERM); <-console.Done })
	return nil
}

// dispatchers writes their file and the keys that it names, migrates the schema, and starts two of them.
func (d *demo) dispatchers(ctx context.Context, dir, binary string, m scenario.Manifests) (*processes, error) {
	file := filepath.Join(dir, "orders.yaml")
	for path, text := range map[string]string{
		file: m.Dispatcher(),
		filepath.Join(dir, "secrets", m.Name+"-db", "dsn"):       m.DispatcherDSN,
		filepath.Join(dir, "secrets", m.Name+"-db-owner", "dsn"): m.OwnerDSN,
	} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			return nil, err
		}
	}
	fmt.Println(scenario.Indent(m.Dispatcher()))
	if err := runs(ctx, binary, "migrate", "up", "-f", file, "--grant-to-login-of", file); err != nil {
		return nil, err
	}
	stage := &processes{}
	d.defers(stage.stop)
	for i := range 2 {
		address, err := freeAddress("127.0.0.1")
		if err != nil {
			return nil, err
		}
		if err := stage.start(binary, file, address, filepath.Join(dir, fmt.Sprintf("dispatcher-%d.log", i))); err != nil {
			return nil, err
		}
	}
	return stage, await(ctx, os.Stdout, 2*time.Minute, "both dispatchers to count the backlog", func(ctx context.Context) error {
		return scenario.Until(ctx, "both dispatchers count the backlog", stage.counted)
	})
}

// processes are dispatchers without Kubernetes, as a Stage.
type processes struct{ all []process }

type process struct {
	*daemon.Process
	url string
}

func (p *processes) start(binary, file, address, logFile string) error {
	log, err := os.Create(logFile)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(binary, "run", "-f", file, "--listen", address)
	cmd.Stdout, cmd.Stderr = log, log
	started, err := daemon.Start(cmd, nil, syscall.SIGTERM)
	if err != nil {
		return fmt.Errorf("start a dispatcher: %w", err)
	}
	p.all = append(p.all, process{started, "http://" + address})
	return nil
}

func (p *processes) stop() {
	for _, one := range p.all {
		one.Signal(syscall.SIGTERM) // the killed one is gone
	}
	for _, one := range p.all {
		<-one.Done
	}
}

// counted is true when every dispatcher has counted the backlog once.
func (p *processes) counted() (bool, string) {
	for _, one := range p.all {
		if s, err := one.status(); err != nil || s.Backlog == nil {
			return false, fmt.Sprint(one.url, " ", err)
		}
	}
	return true, ""
}

func (one process) status() (status.Status, error) {
	var s status.Status
	client := http.Client{Timeout: 2 * time.Second}
	resp, err := client.Get(one.url + status.Path)
	if err != nil {
		return s, err
	}
	defer resp.Body.Close()
	return s, json.NewDecoder(resp.Body).Decode(&s)
}

// Columns prints what /status says, as `kubectl get` would.
func (p *processes) Columns(context.Context) (string, error) {
	var newest *status.Backlog
	running := 0
	for _, one := range p.all {
		s, err := one.status()
		if err != nil || s.Backlog == nil {
			continue // it was killed, or has just begun
		}
		running++
		if newest == nil || s.Backlog.ObservedAt.After(newest.ObservedAt) {
			newest = s.Backlog
		}
	}
	if newest == nil {
		return "", fmt.Errorf("no dispatcher responds")
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%-10s %-10s %-12s %-6s %s\n", "PENDING", "SCHEDULED", "PROCESSING", "DEAD", "DISPATCHERS")
	fmt.Fprintf(&b, "%-10d %-10d %-12d %-6d %d\n", newest.Pending, newest.Scheduled, newest.Processing, newest.Dead, running)
	return b.String(), nil
}

// FreezeOne freezes the first dispatcher.
func (p *processes) FreezeOne(context.Context) (scenario.Frozen, error) {
	s, err := p.all[0].status()
	if err != nil {
		return scenario.Frozen{}, err
	}
	worker, err := uuid.Parse(s.Worker)
	if err != nil {
		return scenario.Frozen{}, err
	}
	return scenario.Freeze(p.all[0].Pid(), worker)
}
