package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/hack/e2e/scenario"
)

const (
	// maxAttempts is the default. With the backoff below they last for some seconds: longer than three
	// dispatchers take to notice an outage with responses, and less than the shortest gateway fault.
	maxAttempts = 20
	sinkTimeout = 1500 * time.Millisecond
	gracePeriod = 10 * time.Second
)

// slot is the place of one dispatcher, which is another process after each fault that ends one.
type slot struct {
	mu  sync.Mutex // one fault at a time
	now *dispatching
}

// dispatching is one dispatcher process.
type dispatching struct {
	*process
	worker uuid.UUID
	ending chan struct{} // closed before it is made to end
}

// startDispatcher starts one and waits until it reports its worker id. It may be called while the
// database and the consumer are unreachable. clockError is for the binary with the wrong clock.
func (w *world) startDispatcher(ctx context.Context, binary, clockError string) (*dispatching, error) {
	return w.startDispatcherWith(ctx, binary, clockError, func(*spec.Config) {})
}

// startDispatcherWith starts one whose configuration is changed.
func (w *world) startDispatcherWith(ctx context.Context, binary, clockError string, change func(*spec.Config)) (*dispatching, error) {
	name := w.next("d")
	file, logFile := filepath.Join(w.dir, name+".yaml"), filepath.Join(w.dir, name+".log")
	c := w.config()
	change(&c)
	if err := write(file, c); err != nil {
		return nil, err
	}
	p, err := start(logFile, []string{clockVariable + "=" + clockError}, filepath.Join(w.binaries, binary), "run", "-f", file)
	if err != nil {
		return nil, err
	}
	d := &dispatching{process: p, ending: make(chan struct{})}
	go w.watch(d)
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	err = scenario.Until(ctx, name+" says who it is", func() (bool, string) {
		d.worker, err = workerOf(ctx, logFile)
		return err == nil, fmt.Sprint(err)
	})
	if err != nil {
		close(d.ending)
		p.kill()
	}
	return d, err
}

// watch notes a dispatcher that ends by itself: none ever should.
func (w *world) watch(d *dispatching) {
	<-d.Done
	select {
	case <-d.ending:
	default:
		w.fail("dispatcher %s (worker %s) ended by itself with %s", d.name, d.worker, d.cmd.ProcessState)
	}
}

func (w *world) config() spec.Config {
	w.mu.Lock()
	defer w.mu.Unlock()
	route := w.started % len(w.dsnFiles)
	c := spec.Config{
		Name: "chaos", Namespace: scenario.Namespace,
		Database: spec.Database{DSNFile: w.dsnFiles[route]},
		Sink:     spec.Sink{HTTP: &spec.HTTPSink{URL: "http://" + w.address}, Timeout: spec.Duration(sinkTimeout)},
		Delivery: spec.Delivery{
			Lease:        spec.Duration(w.lease),
			PollInterval: spec.Duration(w.poll),
			BatchSize:    50,
			Concurrency:  16,
			MaxAttempts:  maxAttempts,
			Backoff:      spec.Backoff{Base: spec.Duration(100 * time.Millisecond), Max: spec.Duration(500 * time.Millisecond)},
			GracePeriod:  spec.Duration(gracePeriod),
		},
		Server: spec.Server{Address: "127.0.0.1:0"},
	}
	if w.ordered {
		c.Delivery.Ordering = spec.OrderingKey
	}
	if w.paced {
		c.Delivery.Concurrency, c.Delivery.MaxConcurrency = spec.Auto, 64
		c.Delivery.RateLimit = &spec.RateLimit{Events: int32(w.limit())}
		if !w.ordered {
			c.Delivery.Fairness = spec.FairnessTenant
		}
	}
	if route == 0 { // the direct one: PgBouncer keeps notifications back
		c.Delivery.WakeUp = spec.WakeUpListen
	}
	if w.deleted {
		c.Retention.Delivered = new(spec.Duration)
	}
	return c
}

// workerOf queries the dispatcher that writes this log, at the address in its first line.
func workerOf(ctx context.Context, logFile string) (uuid.UUID, error) {
	text, err := os.ReadFile(logFile)
	if err != nil {
		return uuid.Nil, err
	}
	line, _, _ := bytes.Cut(text, []byte("\n"))
	var starting struct{ Address string }
	if err := json.Unmarshal(line, &starting); err != nil {
		return uuid.Nil, fmt.Errorf("%w; the log says %q", err, line)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+starting.Address+status.Path, nil)
	if err != nil {
		return uuid.Nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return uuid.Nil, err
	}
	defer resp.Body.Close()
	var current status.Status
	if err := json.NewDecoder(resp.Body).Decode(&current); err != nil {
		return uuid.Nil, err
	}
	return uuid.Parse(current.Worker)
}

// end makes a dispatcher end in one way or another, unless it has ended.
func (d *dispatching) end(how func(*process)) {
	select {
	case <-d.ending:
	default:
		close(d.ending)
	}
	how(d.process)
}
