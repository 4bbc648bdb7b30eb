package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink"
	"github.com/outbox-operator/outbox-operator/hack/servers/kafka"
	"github.com/outbox-operator/outbox-operator/hack/servers/rabbitmq"
	"github.com/outbox-operator/outbox-operator/hack/servers/redis"
)

// destination is where a whole outbox is delivered to: a real server, on the same machine.
type destination struct {
	name, settings string
	// events is how many are delivered in a standard run; the target is acceptance's, in events a second.
	events int
	target float64
	start  func(ctx context.Context) (*destinationRun, error)
}

// destinationRun is a destination that runs.
type destinationRun struct {
	sink config.Sink
	// arrived returns how many messages it has.
	arrived func(ctx context.Context) (int64, error)
	// tool runs the server's own benchmark tool for n messages of 200 bytes, with the same durability, and
	// returns its messages a second. nil: there is none.
	tool func(ctx context.Context, n int) (float64, error)
	stop func(context.Context) error

	processes []int // its own
}

// destinations with the word in their names, in the order of the table.
func destinations(word string) []destination {
	all := []destination{
		kafkaDestination(), natsDestination(), redisDestination(),
		rabbitmqDestination(quorum), rabbitmqDestination(classic), httpSingle(), httpBatch(),
	}
	return slices.DeleteFunc(all, func(d destination) bool {
		return !strings.Contains(strings.ToLower(d.name), strings.ToLower(word))
	})
}

// runSinks drains an outbox into each destination, one at a time. A destination is started once, and its
// own tool runs last, when it is warm.
func runSinks(ctx context.Context, b *bench) {
	for _, d := range destinations(b.sinks) {
		if ctx.Err() != nil {
			return
		}
		s := ours(d.name, d.settings, job{Batch: 500})
		run, err := d.startIn(ctx)
		if errors.Is(err, kafka.ErrMissing) || errors.Is(err, rabbitmq.ErrMissing) || errors.Is(err, redis.ErrMissing) {
			b.note("%s is left out: %v", d.name, err)
			continue
		}
		if err != nil {
			b.measure(ctx, "sinks", s, "", func() (measure, error) { return nil, fmt.Errorf("start it: %w", err) })
			continue
		}
		s.job.Sink = &run.sink
		b.deliverTo(ctx, s, run, d.events*b.size.drain/standard.drain)
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		if err := run.stop(stop); err != nil {
			b.say("stop %s: %v", d.name, err)
		}
		cancel()
	}
}

// startIn starts it, and finds its processes: those that this one has from then on.
func (d destination) startIn(ctx context.Context) (*destinationRun, error) {
	before := map[int]bool{}
	children, err := family(nil)
	if err != nil {
		return nil, err
	}
	for _, pid := range children {
		before[pid] = true
	}
	run, err := d.start(ctx)
	if err == nil {
		run.processes, err = family(before)
	}
	return run, err
}

// deliverTo adds the runs to one destination.
func (b *bench) deliverTo(ctx context.Context, s system, run *destinationRun, events int) {
	broker := func() (time.Duration, error) { return cpuOf(run.processes) }
	for n := range b.runs {
		b.measure(ctx, "sinks", s, "", func() (measure, error) {
			m, err := b.drain(ctx, s, drainOf{load: load{events: events, payload: 200}, broker: broker})
			if err != nil {
				return m, err
			}
			got, err := run.arrived(ctx)
			if want := int64((n + 1) * events); err == nil && got != want {
				err = fmt.Errorf("%d messages arrived, want %d", got, want)
			}
			if err == nil && n == b.runs-1 && run.tool != nil {
				if m[toolRate], err = run.tool(ctx, events); err != nil {
					err = fmt.Errorf("its own tool: %w", err)
				}
			}
			return m, err
		})
	}
}

// sinkOf is what a worker process delivers to.
func sinkOf(j job, c *counter) (dispatcher.Sink, error) {
	if j.Sink == nil {
		return &nothing{counter: c, job: j}, nil
	}
	cfg := config.Config{Name: "bench", Namespace: namespace, Sink: *j.Sink}
	cfg.ApplyDefaults()
	return sink.New(cfg, io.Discard)
}

// family returns what a process has started since: its children that are not among before.
func family(before map[int]bool) (roots []int, err error) {
	children, err := processes()
	for _, pid := range children[os.Getpid()] {
		if !before[pid] {
			roots = append(roots, pid)
		}
	}
	return roots, err
}

// cpuOf is the CPU time of processes and of all that they have started.
func cpuOf(roots []int) (total time.Duration, err error) {
	children, err := processes()
	if err != nil {
		return 0, err
	}
	for next := roots; len(next) > 0; next = next[1:] {
		if own, ended, _, err := procStat(next[0]); err == nil { // else it has just ended
			total += own + ended
		}
		next = append(next, children[next[0]]...)
	}
	return total, nil
}

// processes returns the children of each process of the machine.
func processes() (map[int][]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	children := map[int][]int{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if _, _, parent, err := procStat(pid); err == nil { // else it has just ended
			children[parent] = append(children[parent], pid)
		}
	}
	return children, nil
}
