package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/hack/e2e/scenario"
	"github.com/outbox-operator/outbox-operator/hack/testing/objects"
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
	role    int // see objects
	worker  uuid.UUID
	address string
	ending  chan struct{} // closed before it is made to end
}

// startDispatcher starts one and waits until it reports its worker id. It may be called while the
// database and the consumer are unreachable. clockError is for the binary with the wrong clock.
func (w *world) startDispatcher(ctx context.Context, role int, binary, clockError string) (*dispatching, error) {
	return w.startDispatcherWith(ctx, role, binary, clockError, func(map[string]any) {})
}

// startDispatcherWith starts one whose spec.delivery is changed.
func (w *world) startDispatcherWith(ctx context.Context, role int, binary, clockError string, change func(delivery map[string]any)) (*dispatching, error) {
	name := w.next("d")
	file, logFile := filepath.Join(w.dir, name+".yaml"), filepath.Join(w.dir, name+".log")
	dispatcher, outbox := w.objects(role)
	change(dispatcher["delivery"].(map[string]any))
	if err := objects.Write(file, fmt.Sprint("chaos", role), dispatcher, outbox); err != nil {
		return nil, err
	}
	p, err := start(logFile, []string{clockVariable + "=" + clockError}, filepath.Join(w.binaries, binary), "run", "-f", file, "--listen", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	d := &dispatching{process: p, role: role, ending: make(chan struct{})}
	go w.watch(d, name)
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	err = scenario.Until(ctx, name+" says who it is", func() (bool, string) {
		d.worker, d.address, err = startOf(logFile)
		return err == nil, fmt.Sprint(err)
	})
	if err == nil && w.prometheus != nil {
		err = w.prometheus.Scrape(name, d.address, "", map[string]string{"namespace": "chaos", "pod": name})
	}
	if err != nil {
		close(d.ending)
		p.kill()
	}
	return d, err
}

// watch notes a dispatcher that ends by itself: none ever should.
func (w *world) watch(d *dispatching, name string) {
	<-d.Done
	if w.prometheus != nil {
		_ = w.prometheus.Scrape(name, "", "", nil) // else what is scraped of it is stale
	}
	select {
	case <-d.ending:
	default:
		w.fail("dispatcher %s (worker %s) ended by itself with %s", d.name, d.worker, d.cmd.ProcessState)
	}
}

// objects are the specs of the next dispatcher, and of its outbox. With copies it copies in the role 0, and delivers to the destination of that
// number in another one.
func (w *world) objects(role int) (dispatcher, outbox map[string]any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	route := w.started % len(w.routes)
	delivery := map[string]any{
		"lease": w.lease.String(), "pollInterval": w.poll.String(), "batchSize": 50, "concurrency": 16, "maxAttempts": maxAttempts,
		"backoff": map[string]any{"base": "100ms", "max": "500ms"}, "gracePeriod": gracePeriod.String(),
	}
	if w.ordered {
		delivery["ordering"] = "Key"
	}
	if w.paced || w.started/2%2 == 0 {
		delivery["concurrency"], delivery["maxConcurrency"] = "Auto", 64
	}
	if w.paced {
		delivery["rateLimit"] = map[string]any{"events": w.limit()}
		if !w.ordered {
			delivery["fairness"] = "Tenant"
		}
	}
	if route == 0 { // the direct one: PgBouncer keeps notifications back
		delivery["wakeUp"] = "Listen"
	}
	outbox = login(w.routes[route])
	if w.deleted {
		outbox["retention"] = map[string]any{"delivered": "0s"}
	}
	sink := map[string]any{"timeout": sinkTimeout.String()}
	dispatcher = map[string]any{"namespace": scenario.Namespace, "delivery": delivery, "objective": map[string]any{"freshness": "60s"}, "sink": sink}
	if w.copies > 0 && role == 0 {
		sink["copy"], dispatcher["topics"] = map[string]any{"topics": w.sent()}, shopTopics
		return dispatcher, outbox
	}
	sink["http"] = map[string]any{"url": "http://" + w.address}
	if role > 0 {
		dispatcher["topics"] = w.sent()[role-1 : role]
	}
	return dispatcher, outbox
}

// login is the spec of an Outbox with the login in a Secret.
func login(secret string) map[string]any {
	return map[string]any{"secretRef": map[string]any{"name": secret}}
}

// startOf is whose log it is, and where that listens, by its first line.
func startOf(logFile string) (worker uuid.UUID, address string, err error) {
	text, err := os.ReadFile(logFile)
	if err != nil {
		return uuid.Nil, "", err
	}
	line, _, _ := bytes.Cut(text, []byte("\n"))
	var starting struct {
		Worker  uuid.UUID
		Address string
	}
	if err := json.Unmarshal(line, &starting); err != nil {
		return uuid.Nil, "", fmt.Errorf("%w; the log says %q", err, line)
	}
	return starting.Worker, starting.Address, nil
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
