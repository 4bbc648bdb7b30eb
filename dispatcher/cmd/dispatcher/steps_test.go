package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"time"
)

// A fleet whose pods come and go while events flow, as a scaler lets them: a step down spends no attempt and repeats no
// event, and with order per key no event overtakes an earlier one of its key.
//
// CONTRACT: C-30, C-50, C-107
func TestStepsOfAScaler(t *testing.T) {
	for ordering, steps := range map[string]int{"None": 100, "Key": 200} {
		t.Run(ordering, func(t *testing.T) {
			t.Parallel()
			if testing.Short() {
				steps = 10
			}
			takeSteps(t, ordering, steps)
		})
	}
}

const fleet, keysOfSteps, eventsOfAStep = 3, 40, 300

func takeSteps(t *testing.T, ordering string, steps int) {
	o := installed(t)
	var mu sync.Mutex
	times, last, inversions, arrivals := map[string]int{}, map[string]int64{}, 0, 0
	consumer := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		time.Sleep(10 * time.Millisecond) // so that a stop meets deliveries in flight
		mu.Lock()
		defer mu.Unlock()
		arrivals++
		times[r.Header.Get("ce-id")]++
		key, sequence := r.Header.Get("ce-partitionkey"), int64(0)
		if n, err := strconv.ParseInt(r.Header.Get("ce-sequence"), 10, 64); err == nil {
			sequence = n
		}
		if sequence <= last[key] {
			inversions++
		}
		last[key] = sequence
	}))
	defer consumer.Close()
	file := o.file(t, o.dispatcher, dispatching("{http: {url: '"+consumer.URL+"'}}")+"delivery: {ordering: "+ordering+", batchSize: 50, concurrency: 4}\n")

	produced := 0
	produce := func() {
		o.exec(t, fmt.Sprintf("select outbox.enqueue('shop', 'orders', '{}', p_partition_key => 'k' || n %% %d) from generate_series(1, %d) n", keysOfSteps, eventsOfAStep))
		produced += eventsOfAStep
	}
	var running []*process
	for range fleet {
		running = append(running, start(t, file))
	}
	arrived := func() int { mu.Lock(); defer mu.Unlock(); return arrivals }
	produce()
	busy := 0
	for range steps {
		produce()
		before := arrived()
		await(t, "events flow", func() bool { return arrived() > before })
		if arrived() < produced {
			busy++
		}
		if code := running[0].stop(t); code != 0 {
			t.Fatalf("a step down ended with exit code %d", code)
		}
		running = append(running[1:], start(t, file))
	}
	await(t, "all is delivered", func() bool { return o.count(t, "status = 'delivered'") == produced })
	if n := o.count(t, "attempts <> 1"); n != 0 {
		t.Errorf("%d of %d events have spent more than their one attempt", n, produced)
	}
	if busy < steps*9/10 {
		t.Errorf("only %d of %d steps met events that wait", busy, steps)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(times) != produced || arrivals != produced {
		t.Errorf("%d arrivals of %d events, want each of %d once", arrivals, len(times), produced)
	}
	if ordering == "Key" && (inversions != 0 || len(last) != keysOfSteps) {
		t.Errorf("%d inversions in %d keys", inversions, len(last))
	}
	t.Logf("%d steps down, %d of them while events waited, %d events, %d of another order than that of the producer", steps, busy, produced, inversions)
}
