package outbox_test

import (
	"context"
	"net"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/outbox"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
)

// serve delivers orders to a function of this process until ctx ends: 100 in a second over all processes that run it. It
// removes delivered rows after some seconds, and serves metrics and status at the listener.
func serve(ctx context.Context, pool *pgxpool.Pool, listener net.Listener, handle func(context.Context, *dispatcher.Event) error) error {
	registry := prometheus.NewRegistry()
	d, err := outbox.New(pool, dispatcher.Handlers{"orders": handle}, outbox.Config{
		Config:     dispatcher.Config{Topics: []string{"orders"}, RateLimit: dispatcher.Rate{Events: 100, Period: time.Second}},
		Store:      pgstore.Options{Namespace: "shop", Dispatcher: "orders"},
		Retention:  outbox.Retention{Delivered: 2 * time.Second, CheckEvery: time.Second},
		Registerer: registry,
	})
	if err != nil {
		return err
	}
	server := &http.Server{Handler: d.Handler(registry), ReadHeaderTimeout: 5 * time.Second}
	defer func() { _ = server.Close() }()
	go func() { _ = server.Serve(listener) }()
	return d.Run(ctx)
}

// A whole dispatcher in a service.
func ExampleNew() { _ = serve }
