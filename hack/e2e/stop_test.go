package e2e

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/outbox-operator/outbox-operator/hack/e2e/scenario"
)

// A stop takes effect whatever else is wrong: replicas 0 within 10 seconds, Paused within 60.
//
// CONTRACT: C-105
var _ = Describe("a stop", Label("stop"), Ordered, func() {
	var w *world

	BeforeAll(func() {
		w = newWorld("stop")
		w.ready()
		w.trickle()
	})

	troubles := []struct {
		// cause and fix are patches of the OutboxDispatcher; do and undo are the other steps.
		name, cause, fix string
		do, undo         func()
		// kind is the condition that reports the trouble before the stop; empty for one that is reported later.
		kind string
	}{
		{
			name: "its Secret is deleted",
			do:   func() { w.kubectl("delete", "secret", "orders-db") },
			undo: func() { w.apply(w.manifests.Secrets()) },
		},
		{
			name: "an expression is wrong", cause: `{"spec":{"message":{"transform":[{"payload":"payload.("}]}}}`, fix: `{"spec":{"message":{"transform":null}}}`,
			kind: "Stalled",
		},
		{
			name: "its migration hangs", kind: "Reconciling",
			cause: `{"spec":{"pods":{"template":{"spec":{"nodeSelector":{"nowhere":"true"}}}}}}`, fix: `{"spec":{"pods":{"template":null}}}`,
		},
		{
			name: "a quota refuses its pods", cause: `{"spec":{"delivery":{"batchSize":100}}}`, fix: `{"spec":{"delivery":{"batchSize":500}}}`, kind: "Reconciling",
			do:   func() { w.kubectl("create", "quota", "none", "--hard=pods=0") },
			undo: func() { w.kubectl("delete", "quota", "none") },
		},
		{
			name: "its image cannot be pulled", kind: "Reconciling",
			cause: `{"spec":{"pods":{"template":{"spec":{"containers":[{"name":"dispatcher","image":"nowhere.invalid/image:1"}]}}}}}`, fix: `{"spec":{"pods":{"template":null}}}`,
		},
	}
	for _, stop := range []struct {
		name, patch, undo string
		within            time.Duration
	}{
		{"replicas 0", `{"spec":{"replicas":0}}`, `{"spec":{"replicas":1}}`, 10 * time.Second},
		{"Paused", `{"spec":{"state":"Paused"}}`, `{"spec":{"state":"Running"}}`, 60 * time.Second},
	} {
		for _, trouble := range troubles {
			It(fmt.Sprintf("by %s takes effect while %s", stop.name, trouble.name), func() {
				w.must(w.dispatcher.WaitReady(w.ctx, 2*time.Minute))
				w.claiming()
				if trouble.do != nil {
					trouble.do()
				}
				if trouble.cause != "" {
					w.patch(trouble.cause)
				}
				if trouble.kind != "" {
					w.expect(trouble.kind, "True", "")
				}
				w.patch(stop.patch)
				took := w.standstill(stop.within)
				w.Logf("nothing is claimed %.1f s after the stop; the bound is %s\n%s", took.Seconds(), stop.within, w.kubectl("get", "obd,pods"))

				w.patch(stop.undo)
				if trouble.fix != "" {
					w.patch(trouble.fix)
				}
				if trouble.undo != nil {
					trouble.undo()
				}
			})
		}
	}
})

// patch changes the OutboxDispatcher as `kubectl patch` does.
func (w *world) patch(patch string) {
	w.Helper()
	w.kubectl("patch", "obd", "orders", "--type=merge", "-p", patch)
}

// trickle inserts an event every 100 ms until the container ends.
func (w *world) trickle() {
	ctx, stop := context.WithCancel(w.ctx)
	conn, err := pgx.Connect(ctx, w.shop.Admin)
	w.must(err)
	done := make(chan struct{})
	w.Cleanup(func() { stop(); <-done })
	go func() {
		defer close(done)
		defer conn.Close(context.WithoutCancel(ctx))
		for {
			_, err := conn.Exec(ctx, "insert into outbox.outbox_events (id, namespace, topic, payload) values (gen_random_uuid(), $1, $2, '{}')", scenario.Namespace, scenario.Topic)
			if err != nil {
				return // the container has ended, or the next claiming() fails
			}
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
				return
			}
		}
	}()
}

// leases is the number of the newest lease: each claim that returns rows creates one.
func (w *world) leases() int64 { return w.number("select last_value from outbox.outbox_leases") }

// claiming waits until rows are claimed.
func (w *world) claiming() {
	w.Helper()
	before := w.leases()
	Eventually(w.leases).WithTimeout(time.Minute).WithPolling(200*time.Millisecond).Should(BeNumerically(">", before), "rows are claimed")
}

// standstill waits until nothing has been claimed for 5 seconds, and returns when the last claim was. It fails after within.
func (w *world) standstill(within time.Duration) time.Duration {
	w.Helper()
	const still = 5 * time.Second
	begin := time.Now()
	last, since := w.leases(), begin
	for time.Since(since) < still {
		if time.Since(begin) > within+still {
			w.Fatalf("rows are still claimed %s after the stop", time.Since(begin).Round(time.Second))
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-w.ctx.Done():
			w.Fatal(w.ctx.Err())
		}
		if now := w.leases(); now != last {
			last, since = now, time.Now()
		}
	}
	return since.Sub(begin)
}
