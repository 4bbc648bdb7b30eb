package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// The systems of the cell about memory are the dispatcher as a user has it.
const (
	binaryKept    = "dispatcher run, rows kept"
	binaryDeleted = "dispatcher run, delete at ack"
	binaryDefault = "dispatcher run"
)

// The ends of its cases.
const (
	caseSmall = "of 200 B pending"
	caseLarge = "of 1 MiB pending"
)

func runMemory(ctx context.Context, b *bench) {
	const batch = "batchSize 2000; the rest default"
	small, large := thousands(int64(b.size.million))+" "+caseSmall, thousands(int64(b.size.large))+" "+caseLarge
	for _, c := range []struct {
		system, settings, pending string
		events                    int
		fill                      []string
		config                    map[string]any
	}{
		{binaryKept, batch, small, b.size.million, fillSmall(b.size.million), map[string]any{"delivery": map[string]any{"batchSize": 2000}}},
		{binaryDeleted, batch + ", retention.delivered 0s", small, b.size.million, fillSmall(b.size.million),
			map[string]any{"delivery": map[string]any{"batchSize": 2000}, "retention": map[string]any{"delivered": "0s"}}},
		{binaryDefault, "all default", large, b.size.large, fillLarge(b.size.large), nil},
	} {
		b.measure(ctx, "memory", system{Name: c.system, Settings: c.settings}, c.pending, func() (measure, error) {
			return b.dispatch(ctx, c.fill, c.config, func(db *database, pid int) (measure, error) {
				return db.watchBusy(ctx, pid, c.events, b.size.run)
			})
		})
	}
}

// dispatch runs the dispatcher's own binary on an outbox that the statements have filled, and looks at its
// process. It delivers to the log sink, whose output goes nowhere.
func (b *bench) dispatch(ctx context.Context, fill []string, config map[string]any, look func(db *database, pid int) (measure, error)) (measure, error) {
	db, err := b.srv.database(ctx)
	if err != nil {
		return nil, err
	}
	defer db.drop()
	if err := outboxSetup(ctx, db.dsn()); err != nil {
		return nil, err
	}
	for _, sql := range fill {
		if err := db.exec(ctx, sql); err != nil {
			return nil, fmt.Errorf("write the events: %w", err)
		}
	}
	return dispatchIn(ctx, db, config, func(pid int) (measure, error) { return look(db, pid) })
}

// dispatchIn is dispatch in a database with an outbox.
func dispatchIn(ctx context.Context, db *database, config map[string]any, look func(pid int) (measure, error)) (m measure, err error) {
	dir, err := os.MkdirTemp("", "outbox-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binary, err := buildDispatcher(ctx, dir)
	if err != nil {
		return nil, err
	}
	all := map[string]any{
		"name": "bench", "namespace": namespace, "database": map[string]any{"dsn": db.dsn()},
		"sink": map[string]any{"log": map[string]any{}}, "server": map[string]any{"address": "127.0.0.1:0"},
	}
	maps.Copy(all, config)
	text, err := json.Marshal(all)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "dispatcher.yaml") // JSON is YAML
	if err := os.WriteFile(file, text, 0o600); err != nil {
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
	return look(cmd.Process.Pid)
}

// buildDispatcher builds it as the image has it.
func buildDispatcher(ctx context.Context, dir string) (binary string, err error) {
	binary = filepath.Join(dir, "dispatcher")
	build := exec.CommandContext(ctx, "../build.sh", binary, "./dispatcher/cmd/dispatcher")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the dispatcher: %w: %s", err, out)
	}
	return binary, nil
}

// watchBusy measures the memory of a process that has n events to deliver, until it is done, or for as
// long as d.
func (db *database) watchBusy(ctx context.Context, pid, n int, d time.Duration) (measure, error) {
	began := now()
	for more := true; more && now()-began < int64(d); {
		if err := sleep(ctx, 100*time.Millisecond); err != nil {
			return nil, err
		}
		var err error
		if more, err = queryOne[bool](ctx, db.conn, `select exists (select from outbox.outbox_events where live)`); err != nil {
			return nil, err
		}
	}
	seconds := float64(now()-began) / 1e9
	cpu, _, _, err := procStat(pid)
	if err != nil {
		return nil, err
	}
	memory, err := memoryOf(pid)
	if err != nil {
		return nil, err
	}
	left, err := queryOne[int](ctx, db.conn, `select count(*) from outbox.outbox_events where live`)
	if err == nil && left == n {
		err = fmt.Errorf("no event was delivered in %s", d)
	}
	return measure{
		peakMemMiB: mib(memory.peak),
		fileMemMiB: mib(memory.file),
		perSecond:  float64(n-left) / seconds,
		clientCPU:  float64(cpu.Microseconds()) / float64(max(1, n-left)),
	}, err
}

// fillSmall writes events with payloads of 200 bytes.
func fillSmall(n int) []string {
	return []string{
		fmt.Sprintf(`insert into outbox.outbox_events (id, namespace, topic, payload)
			select gen_random_uuid(), '%s', '%s', jsonb_build_object('n', lpad(n::text, 9, '0'), 'text', repeat('x', 167)) from generate_series(1, %d) as n`, namespace, topic, n),
		`analyze outbox.outbox_events`,
	}
}

// fillLarge writes events whose payloads are 1 MiB as text and, being compressed, small on disk: a
// million of them fit. Each is a copy of one compressed value, so its size is given instead of
// computed, which would take a quarter of an hour.
func fillLarge(n int) []string {
	return []string{
		`create table large (payload jsonb)`,
		`insert into large select jsonb_build_object('text', repeat('x', 1048550))`,
		fmt.Sprintf(`insert into outbox.outbox_events (id, namespace, topic, payload, size_bytes)
			select gen_random_uuid(), '%s', '%s', payload, 1048562 from generate_series(1, %d), large`, namespace, topic, n),
		`analyze outbox.outbox_events`,
	}
}

func mib(bytes int64) float64 { return float64(bytes) / (1 << 20) }
