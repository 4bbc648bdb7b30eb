package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/database"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/replay"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
)

// Pauses of a replay between two attempts, while the database is in trouble.
const (
	firstPause   = time.Second
	longestPause = 30 * time.Second
)

// served makes one attempt at a replay; or, with an address, serves its status there, and tries again as long as
// the database is in trouble.
func served(ctx context.Context, address, version string, cfg spec.Config, attempt func(report func(status.Replay)) (status.Replay, error)) (status.Replay, error) {
	if address == "" {
		return attempt(func(status.Replay) {})
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return status.Replay{}, fmt.Errorf("--listen: %w; choose a free port", err)
	}
	log := newLogger(cfg, os.Stderr)
	log.Info("starting", "version", version, "namespace", cfg.Namespace, "address", listener.Addr().String())
	s := newReplayStatus(cfg, version)
	server := &http.Server{Handler: s.handler(), ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute}
	var ended sync.WaitGroup
	ended.Go(func() { _ = server.Serve(listener) }) // it ends when it is closed
	defer ended.Wait()
	defer func() { _ = server.Close() }()

	for wait := firstPause; ; wait = min(2*wait, longestPause) {
		p, err := attempt(func(p status.Replay) {
			s.progress(p)
			wait = firstPause
		})
		if err == nil || ctx.Err() != nil || errors.As(err, &refused{}) ||
			errors.Is(err, replay.ErrNotFound) || errors.Is(err, replay.ErrNamespace) || errors.Is(err, replay.ErrTimeout) {
			return p, err
		}
		s.failed(ctx, err)
		log.Warn("the replay failed; trying again", "in", wait, "error", slog.AnyValue(err))
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return p, err
		case <-timer.C:
		}
	}
}

// replayStatus is the /status of a process that runs a replay.
type replayStatus struct {
	cfg spec.Config

	mu  sync.Mutex
	now status.Status
}

func newReplayStatus(cfg spec.Config, version string) *replayStatus {
	return &replayStatus{cfg: cfg, now: status.Status{
		Name: cfg.Name, Namespace: cfg.Namespace, Version: version, State: "Running", StartedAt: time.Now(),
		Source: status.Link{State: status.Unknown}, Sink: status.Link{State: status.Unknown}, Schema: status.Schema{State: string(status.Unknown)},
	}}
}

func (s *replayStatus) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+status.Path, func(w http.ResponseWriter, _ *http.Request) {
		s.mu.Lock()
		now := s.now.Brief()
		s.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		encoder := json.NewEncoder(w)
		encoder.SetEscapeHTML(false) // it is JSON, and else up to six times as long
		_ = encoder.Encode(now)      // fails only when the client is gone
	})
	return mux
}

// progress stores the progress that was just read from the database.
func (s *replayStatus) progress(p status.Replay) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now.Replay = &p
	s.now.Source = status.Link{State: status.Reachable}
	s.now.Schema = status.Schema{State: string(dispatcher.SchemaReady)}
}

// failed stores why the replay failed. It reads the schema's version, because an error of a statement does not have it.
func (s *replayStatus) failed(ctx context.Context, err error) {
	reason, message := database.Classify(err)
	if reason == database.PermissionDenied {
		message = brief(err) // it says which grants
	}
	schema, known := s.schema(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if known {
		s.now.Schema = schema
	}
	if known && schema.State != string(dispatcher.SchemaReady) {
		s.now.Source = status.Link{State: status.Reachable}
		return
	}
	s.now.Source = status.Link{State: status.Unreachable, Reason: reason, Message: message}
}

// schema reads the schema's version, if the database responds.
func (s *replayStatus) schema(ctx context.Context) (status.Schema, bool) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	pool, err := database.Pool(ctx, s.cfg.Database, s.cfg.Name)
	if err != nil {
		return status.Schema{}, false
	}
	defer pool.Close()
	schema, err := pgstore.New(pool, pgstore.Options{Schema: s.cfg.Database.Schema, Namespace: s.cfg.Namespace}).Schema(ctx)
	return status.Schema{State: string(schema.State), Version: schema.Version, Required: schema.Required, Message: schema.Message}, err == nil
}
