package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/outbox-operator/outbox-operator/hack/scenario"
)

// consumer is the story's consumer, which in addition can be told to refuse a topic or all of them:
// POST /answer?status=503&topic=orders, and status=0 for an end of it.
type consumer struct {
	scenario.Consumer
	mu      sync.Mutex
	answers map[string]int // by topic; "" is for all
}

func (c *consumer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/answer" {
		status, err := strconv.Atoi(r.FormValue("status"))
		if err != nil {
			http.Error(w, "status is not a number", http.StatusBadRequest)
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.answers[r.FormValue("topic")] = status
		return
	}
	c.mu.Lock()
	status := max(c.answers[""], c.answers[r.Header.Get("ce-topic")])
	c.mu.Unlock()
	if status != 0 {
		http.Error(w, "told to", status)
		return
	}
	c.Consumer.ServeHTTP(w, r)
}

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
	handler := &consumer{Consumer: scenario.Consumer{Work: *work, Journal: journal}, answers: map[string]int{}}
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

// answer tells a consumer how to answer a topic's events.
func answer(ctx context.Context, url string, status int, topic string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, fmt.Sprintf("%s/answer?status=%d&topic=%s", url, status, topic), nil)
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
