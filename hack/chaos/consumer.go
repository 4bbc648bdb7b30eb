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
	"os"
	"strconv"
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

// consumer is the story's consumer, which POST /instruct also makes
//   - refuse a topic or all of them: status=503&topic=orders, and status=0 for an end of it;
//   - leave one request in so many without a response: mute=3, and mute=0 for an end of it;
//   - leave requests of stuckType without a response: stuck=true;
//   - take what it refuses for good: repaired=true.
type consumer struct {
	scenario.Consumer
	clientTimeout time.Duration // of those that send
	mu            sync.Mutex
	statuses      map[string]int // by topic; "" is for all
	mute          int
	repaired      bool
	stuck         bool
	requests      io.Writer // each request
}

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
	status := max(c.statuses[""], c.statuses[r.Header.Get("ce-topic")])
	silent := c.mute > 0 && rand.IntN(c.mute) == 0
	hangs := c.stuck && r.Header.Get("ce-type") == stuckType
	if c.repaired && r.Header.Get("ce-type") == scenario.PoisonType {
		r.Header.Set("ce-type", "OrderRepaired")
	}
	c.mu.Unlock()
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
	if text := r.FormValue("status"); text != "" {
		c.statuses[r.FormValue("topic")], err = strconv.Atoi(text)
	}
	if text := r.FormValue("mute"); text != "" && err == nil {
		c.mute, err = strconv.Atoi(text)
	}
	if text := r.FormValue("stuck"); text != "" && err == nil {
		c.stuck, err = strconv.ParseBool(text)
	}
	if text := r.FormValue("repaired"); text != "" && err == nil {
		c.repaired, err = strconv.ParseBool(text)
	}
	return err
}

// abandon gives no response for longer than a sender waits. Half of the requests are done all the same.
func (c *consumer) abandon(r *http.Request) {
	if rand.IntN(2) == 0 {
		c.Consumer.ServeHTTP(discard{}, r)
	}
	_, _ = io.Copy(io.Discard, r.Body) // else the server does not notice that the sender is gone
	select {
	case <-time.After(2 * c.clientTimeout):
	case <-r.Context().Done():
	}
	panic(http.ErrAbortHandler)
}

// discard drops the response.
type discard struct{}

func (discard) Header() http.Header         { return http.Header{} }
func (discard) Write(b []byte) (int, error) { return len(b), nil }
func (discard) WriteHeader(int)             {}

// consume is the consumer's process.
func consume(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("consumer", flag.ExitOnError)
	address := flags.String("address", "", "where to listen")
	file := flags.String("journal", "", "file of deliveries")
	work := flags.Duration("work", 0, "how long an event takes")
	_ = flags.Parse(args) // it exits
	journal, err := appendTo(*file)
	if err != nil {
		return err
	}
	defer journal.Close()
	stalls, err := appendTo(*file + ".stalls")
	if err != nil {
		return err
	}
	defer stalls.Close()
	requests, err := appendTo(*file + ".requests")
	if err != nil {
		return err
	}
	defer requests.Close()
	go func() { _ = noteStalls(ctx, stalls) }() // what is missing there explains nothing
	handler := &consumer{Consumer: scenario.Consumer{Work: *work, Journal: journal}, clientTimeout: sinkTimeout, statuses: map[string]int{}, requests: requests}
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

// instruct says how a consumer statuses; see consumer.
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
