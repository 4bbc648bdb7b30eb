package main

import (
	"context"
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

	"github.com/outbox-operator/outbox-operator/hack/e2e/scenario"
)

// consumer is the story's consumer, which in addition can be told by POST /answer to
//   - refuse a topic or all of them: status=503&topic=orders, and status=0 for an end of it;
//   - leave one request in so many without an answer: mute=3, and mute=0 for an end of it;
//   - take what it refuses for good: repaired=true.
type consumer struct {
	scenario.Consumer
	patience time.Duration // of those that ask
	mu       sync.Mutex
	answers  map[string]int // by topic; "" is for all
	mute     int
	repaired bool
}

func (c *consumer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/answer" {
		if err := c.told(r); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
		return
	}
	c.mu.Lock()
	status := max(c.answers[""], c.answers[r.Header.Get("ce-topic")])
	silent := c.mute > 0 && rand.IntN(c.mute) == 0
	if c.repaired && r.Header.Get("ce-type") == scenario.PoisonType {
		r.Header.Set("ce-type", "OrderRepaired")
	}
	c.mu.Unlock()
	switch {
	case status != 0:
		_, _ = io.Copy(io.Discard, r.Body) // that it ends early is the sender's affair
		http.Error(w, "told to", status)
	case silent:
		c.leave(r)
	default:
		c.Consumer.ServeHTTP(w, r)
	}
}

func (c *consumer) told(r *http.Request) (err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if text := r.FormValue("status"); text != "" {
		c.answers[r.FormValue("topic")], err = strconv.Atoi(text)
	}
	if text := r.FormValue("mute"); text != "" && err == nil {
		c.mute, err = strconv.Atoi(text)
	}
	if text := r.FormValue("repaired"); text != "" && err == nil {
		c.repaired, err = strconv.ParseBool(text)
	}
	return err
}

// leave gives no answer for longer than anybody waits. Half of the requests are done all the same.
func (c *consumer) leave(r *http.Request) {
	if rand.IntN(2) == 0 {
		c.Consumer.ServeHTTP(nobody{}, r)
	}
	_, _ = io.Copy(io.Discard, r.Body) // else the server does not notice that the sender is gone
	select {
	case <-time.After(2 * c.patience):
	case <-r.Context().Done():
	}
	panic(http.ErrAbortHandler)
}

// nobody gets an answer.
type nobody struct{}

func (nobody) Header() http.Header         { return http.Header{} }
func (nobody) Write(b []byte) (int, error) { return len(b), nil }
func (nobody) WriteHeader(int)             {}

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
	go func() { _ = noteStalls(ctx, stalls) }() // what is missing there explains nothing
	handler := &consumer{Consumer: scenario.Consumer{Work: *work, Journal: journal}, patience: sinkTimeout, answers: map[string]int{}}
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

// answer tells a consumer how to answer; see consumer.
func answer(ctx context.Context, url, what string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/answer?"+what, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("tell the consumer what to answer: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("tell the consumer what to answer: it says %s", resp.Status)
	}
	return nil
}
