package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/hack/e2e/scenario"
)

// request is one that arrived, whatever its response.
type request struct {
	ID uuid.UUID `json:"id"`
	At time.Time `json:"at"`
}

// consumer is the story's consumer, which POST /instruct also makes do something, until the same has the value 0:
//   - refuse a topic or all of them: status.orders=503 or status.=503;
//   - leave one request in so many without a response: mute=3;
//   - respond with 500 to one request in so many, and have one tenant come back in three seconds: partly=10;
//   - leave requests of stuckType without a response: stuck=1;
//   - take what it refuses for good: repaired=1.
//
// Events of topics that begin with slowTopic always take long.
type consumer struct {
	scenario.Consumer
	clientTimeout time.Duration // of those that send
	mu            sync.Mutex
	settings      map[string]int
	requests      io.Writer // each request
}

const (
	slowTopic = "slow-"
	slowWork  = 900 * time.Millisecond
)

// throttled is the tenant that the consumer has come back later.
var throttled = uuid.UUID{15: 1}

func (c *consumer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/instruct" {
		if err := c.instructed(r); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
		return
	}
	c.mu.Lock()
	if id, err := uuid.Parse(r.Header.Get("ce-id")); err == nil {
		_ = json.NewEncoder(c.requests).Encode(request{ID: id, At: time.Now()}) // without it the ledger finds an event that was never sent
	}
	topic := r.Header.Get("ce-topic")
	status := max(c.settings["status."], c.settings["status."+topic])
	silent := c.settings["mute"] > 0 && rand.IntN(c.settings["mute"]) == 0
	hangs := c.settings["stuck"] > 0 && r.Header.Get("ce-type") == stuckType
	if n := c.settings["partly"]; n > 0 && r.Header.Get("ce-tenantid") == throttled.String() {
		w.Header().Set("Retry-After", "3")
		status = http.StatusTooManyRequests
	} else if n > 0 && rand.IntN(n) == 0 {
		status = http.StatusInternalServerError
	}
	if c.settings["repaired"] > 0 && r.Header.Get("ce-type") == scenario.PoisonType {
		r.Header.Set("ce-type", "OrderRepaired")
	}
	c.mu.Unlock()
	if strings.HasPrefix(topic, slowTopic) {
		sleep(r.Context(), slowWork)
	}
	switch {
	case status != 0:
		_, _ = io.Copy(io.Discard, r.Body) // whether it ends early is the sender's concern
		http.Error(w, "instructed to", status)
	case hangs:
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	case silent:
		c.abandon(r)
	default:
		c.Consumer.ServeHTTP(w, r)
	}
}

func (c *consumer) instructed(r *http.Request) (err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, text := range r.URL.Query() {
		if c.settings[name], err = strconv.Atoi(text[0]); err != nil {
			return err
		}
	}
	return nil
}

// abandon gives no response for longer than a sender waits. Half of the requests are done all the same.
func (c *consumer) abandon(r *http.Request) {
	if rand.IntN(2) == 0 {
		c.Consumer.ServeHTTP(httptest.NewRecorder(), r)
	}
	_, _ = io.Copy(io.Discard, r.Body) // else the server does not notice that the sender is gone
	select {
	case <-time.After(2 * c.clientTimeout):
	case <-r.Context().Done():
	}
	panic(http.ErrAbortHandler)
}

// consume is the consumer's process.
func consume(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("consumer", flag.ExitOnError)
	address := flags.String("address", "", "where to listen")
	file := flags.String("journal", "", "file of deliveries")
	work := flags.Duration("work", 0, "how long an event takes")
	_ = flags.Parse(args) // it exits
	var files [3]*os.File
	for i, suffix := range []string{"", ".stalls", ".requests"} {
		f, err := appendTo(*file + suffix)
		if err != nil {
			return err
		}
		defer f.Close()
		files[i] = f
	}
	journal, stalls, requests := files[0], files[1], files[2]
	go func() { _ = noteStalls(ctx, stalls) }() // what is missing there explains nothing
	handler := &consumer{Consumer: scenario.Consumer{Work: *work, Journal: journal}, clientTimeout: sinkTimeout, settings: map[string]int{}, requests: requests}
	server := &http.Server{Addr: *address, Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// appendTo opens a journal: what a killed process wrote before stays.
func appendTo(file string) (*os.File, error) {
	return os.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
}

// instruct says what a consumer does; see consumer.
func instruct(ctx context.Context, url, what string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/instruct?"+what, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("instruct the consumer: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("instruct the consumer: it says %s", resp.Status)
	}
	return nil
}
