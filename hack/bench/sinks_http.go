package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/outbox-operator/outbox-operator/api/config"
)

func httpSingle() destination {
	return httpDestination("HTTP, one event in a request", config.Binary, 6000)
}

func httpBatch() destination {
	return httpDestination("HTTP, batches of 100", config.Batch, 20_000)
}

// httpDestination is a consumer that reads each request, counts its events and responds with 200.
func httpDestination(name string, mode config.ContentMode, target float64) destination {
	d := destination{
		name: name, events: 200_000, target: target,
		settings: fmt.Sprintf("mode %s, all else default; a consumer with net/http that reads, counts and responds. HTTP has no benchmark tool of its own", mode),
	}
	if mode == config.Binary {
		d.events = 60_000
	}
	d.start = func(ctx context.Context) (*destinationRun, error) {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		address := listener.Addr().String()
		if err := listener.Close(); err != nil { // the consumer takes the port
			return nil, err
		}
		self, err := os.Executable()
		if err != nil {
			return nil, err
		}
		w, err := startWorker(ctx, []string{self, workerFlag}, job{System: "consumer", Address: address})
		if err != nil {
			return nil, err
		}
		if err := (group{w}).begin(); err != nil {
			return nil, err
		}
		return &destinationRun{
			sink: config.Sink{HTTP: &config.HTTPSink{URL: "http://" + address + "/events"}, ContentMode: mode},
			arrived: func(context.Context) (int64, error) {
				time.Sleep(100 * time.Millisecond) // it reports every 10 ms
				sum, err := (group{w}).read()
				return sum.Handled, err
			},
			stop: func(context.Context) error { _, err := w.stop(); return err },
		}, nil
	}
	return d
}

// consumerWork takes events until it is stopped.
func consumerWork(_ context.Context, j job) error {
	listener, err := net.Listen("tcp", j.Address)
	if err != nil {
		return err
	}
	c := &counter{}
	server := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		n := 1
		if r.Header.Get("ce-id") == "" {
			n = bytes.Count(body, []byte(`"specversion":`))
		}
		c.done(int64(n), 0)
	})}
	return c.obey(func(stop <-chan struct{}) error {
		go func() { <-stop; _ = server.Close() }()
		_ = server.Serve(listener) // until it is closed
		return nil
	})
}
