package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// idle runs the dispatcher's own binary on an empty outbox, with default settings.
func (b *bench) idle(ctx context.Context, d time.Duration) (m measure, err error) {
	db, err := b.srv.database(ctx)
	if err != nil {
		return nil, err
	}
	defer db.drop()
	if err := outboxSetup(ctx, db.dsn()); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "outbox-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binary := filepath.Join(dir, "dispatcher")
	build := exec.CommandContext(ctx, "go", "build", "-C", "../..", "-o", binary, "./dispatcher/cmd/dispatcher")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the dispatcher: %w: %s", err, out)
	}
	config, err := json.Marshal(map[string]any{
		"name": "idle", "namespace": namespace, "database": map[string]any{"dsn": db.dsn()},
		"sink": map[string]any{"log": map[string]any{}}, "server": map[string]any{"address": "127.0.0.1:0"},
	})
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "dispatcher.yaml") // JSON is YAML
	if err := os.WriteFile(file, config, 0o600); err != nil {
		return nil, err
	}
	cmd := exec.Command(binary, "run", "-f", file)
	cmd.SysProcAttr = endWithParent()
	log := &tail{}
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	defer func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if waitErr := cmd.Wait(); waitErr != nil {
			err = errors.Join(err, fmt.Errorf("the dispatcher ended with %w: %s", waitErr, log))
		}
	}()
	return db.watchIdle(ctx, cmd.Process.Pid, d)
}

// watchIdle measures a process that has nothing to do, after it has settled.
func (db *database) watchIdle(ctx context.Context, pid int, d time.Duration) (measure, error) {
	if err := sleep(ctx, min(d, 5*time.Second)); err != nil {
		return nil, err
	}
	if err := db.resetStatements(ctx); err != nil {
		return nil, err
	}
	client, _, _, err := procStat(pid)
	if err != nil {
		return nil, err
	}
	before, err := db.usage(ctx)
	if err != nil {
		return nil, err
	}
	if err := sleep(ctx, d); err != nil {
		return nil, err
	}
	after, err := db.usage(ctx)
	if err != nil {
		return nil, err
	}
	clientAfter, _, _, err := procStat(pid)
	if err != nil {
		return nil, err
	}
	stats, err := db.statements(ctx)
	if err != nil {
		return nil, err
	}
	peak, err := peakMemory(pid)
	if err != nil {
		return nil, err
	}
	seconds := float64(after.at-before.at) / 1e9
	return measure{
		dbLoad:     100 * (after.cpu - before.cpu).Seconds() / seconds,
		clientLoad: 100 * (clientAfter - client).Seconds() / seconds,
		callRate:   float64(stats.calls) / seconds,
		peakMemMiB: float64(peak) / (1 << 20),
	}, nil
}

// large has n events of 1 MiB pending, runs a dispatcher for a while, and measures its memory.
func (b *bench) large(ctx context.Context, n int, d time.Duration) (measure, error) {
	db, err := b.srv.database(ctx)
	if err != nil {
		return nil, err
	}
	defer db.drop()
	if err := outboxSetup(ctx, db.dsn()); err != nil {
		return nil, err
	}
	if err := fillLarge(ctx, db.conn, n); err != nil {
		return nil, fmt.Errorf("write %d events of 1 MiB: %w", n, err)
	}
	g, err := b.startGroup(ctx, oursPolling(), db.dsn(), 1, false)
	if err != nil {
		return nil, err
	}
	if err := g.begin(); err != nil {
		return nil, err
	}
	began := now()
	_, err = g.await(ctx, int64(n), d)
	sum, readErr := g.read()
	peak, peakErr := g.peakMemory()
	_, stopErr := g.stop()
	if errors.Is(err, errSlow) && sum.Handled > 0 {
		err = nil // it was to run for a while
	}
	if err := errors.Join(err, readErr, peakErr, stopErr); err != nil {
		return nil, err
	}
	return measure{
		peakMemMiB: float64(peak) / (1 << 20),
		perSecond:  float64(sum.Handled) / (float64(sum.At-began) / 1e9),
	}, nil
}

// fillLarge writes events whose payloads are 1 MiB as text and, being compressed, small on disk: a
// million of them fit. Each is a copy of one compressed value, so its size is given instead of
// computed, which would take a quarter of an hour.
func fillLarge(ctx context.Context, conn *pgx.Conn, n int) error {
	for _, sql := range []string{
		`alter table outbox.outbox_events alter payload_bytes drop expression`,
		`create table large (payload jsonb)`,
		`insert into large select jsonb_build_object('text', repeat('x', 1048550))`,
		fmt.Sprintf(`insert into outbox.outbox_events (id, namespace, topic, payload, payload_bytes)
			select gen_random_uuid(), '%s', '%s', payload, 1048562 from generate_series(1, %d), large`, namespace, topic, n),
		`analyze outbox.outbox_events`,
	} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
