// Package redissink adds events to streams of Redis, of Valkey, or of what speaks their protocol, as
// CloudEvents 1.0. Package cloudevent says which attributes they carry.
//
// dispatcher/sink/redis.md has the settings, guarantees, outcomes and how to secure it.
package redissink

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/base"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/files"
)

const (
	// batchSize is what one Deliver takes: one round trip for all of them.
	batchSize = 500
	// connectTimeout bounds a connection with its TLS handshake and login, and a probe.
	connectTimeout = 10 * time.Second
	// idleTimeout is how long an idle connection is kept.
	idleTimeout = 30 * time.Second
	// maxRedirects is how often a cluster may send an event to another node in one delivery.
	maxRedirects = 4
)

type sink struct {
	base.Server
	stream base.Place
	cfg    spec.RedisSink
	dial   dialer
	// cluster knows which node has a stream. nil: there is one server.
	cluster *redis.ClusterClient
	// tooLarge is the shortest value that a server found too large; 0: none.
	tooLarge atomic.Int64

	mu   sync.Mutex
	idle map[string][]*connection // by address, the one used last at the end
}

var _ dispatcher.Sink = (*sink)(nil)

// New returns a sink for cfg. route says a stream of an event, see [base.PlaceOf]. It never fails.
func New(cfg spec.RedisSink, route func(*dispatcher.Event) (string, error)) (dispatcher.Sink, error) {
	return build(cfg, route), nil
}

func build(cfg spec.RedisSink, route func(*dispatcher.Event) (string, error)) *sink {
	cfg.ApplyDefaults()
	logging.Disable() // what it writes is not JSON, and the sink's errors say all of it
	s := &sink{
		Server: base.Server{
			Peer: peer, Kind: "Redis", At: strings.Join(cfg.Addresses, ", "), Doing: "adding to streams at",
			Limit: min(cfg.Timeout.D(), connectTimeout), Explain: explainLogin,
		},
		stream: base.PlaceOf(route, cfg.Stream),
		cfg:    cfg, dial: files.Dialer(cfg.TLS, connectTimeout), idle: map[string][]*connection{},
	}
	if cfg.Topology == spec.RedisCluster {
		s.cluster = s.newCluster()
	}
	return s
}

// BatchSize is 500.
func (*sink) BatchSize() int { return batchSize }

// entry is an event on its way, and its reply.
type entry struct {
	stream     string
	args       []any // of XADD
	address    string
	redirected bool // the node does not have the stream's slot yet: see redirect
	err        error
}

// Deliver adds the batch to its streams in one pipeline, in a cluster one for each node, and returns a result for
// each event as Redis does. When ctx ends, or the timeout, nothing of it is sent any more.
func (s *sink) Deliver(ctx context.Context, batch []*dispatcher.Event) []error {
	return base.Deliver("redis", batch, s.entry, func(entries []*entry) []error {
		if ctx.Err() != nil {
			return slices.Repeat([]error{s.Interrupted(ctx)}, len(entries))
		}
		limited, cancel := context.WithTimeout(ctx, s.cfg.Timeout.D())
		defer cancel()
		address := s.addresses(ctx, limited)
		var left []*entry
		for _, en := range entries {
			if en.address, en.err = address(en.stream); en.err == nil {
				left = append(left, en)
			}
		}
		for range maxRedirects {
			if left = s.send(ctx, limited, left); len(left) == 0 {
				break
			}
		}
		errs := make([]error, len(entries))
		for i, en := range entries {
			errs[i] = en.err
		}
		return errs
	})
}

// send gives the entries to their nodes, and returns those that continue to another one.
func (s *sink) send(ctx, limited context.Context, entries []*entry) (redirected []*entry) {
	type node struct {
		address    string
		redirected bool
	}
	nodes := map[node][]*entry{}
	for _, en := range entries {
		n := node{en.address, en.redirected}
		nodes[n] = append(nodes[n], en)
	}
	var wg sync.WaitGroup
	for n, entries := range nodes {
		if len(nodes) == 1 {
			s.sendTo(ctx, limited, n.address, entries)
			continue
		}
		wg.Go(func() { s.sendTo(ctx, limited, n.address, entries) })
	}
	wg.Wait()
	for _, en := range entries {
		if s.redirect(en) {
			redirected = append(redirected, en)
		}
	}
	return redirected
}

// sendTo adds the entries at one server. One that is too large has the server refuse the rest of the
// pipeline unread, which is then sent again: so it is known which one is to blame.
func (s *sink) sendTo(ctx, limited context.Context, address string, entries []*entry) {
	for len(entries) > 0 {
		now := s.together(entries)
		unread := s.pipeline(ctx, limited, address, entries[:now])
		entries = entries[now-unread:]
	}
}

// Probe logs in on a connection of its own, to every master of a cluster, and checks whether it takes
// commands and is not a replica. If every event goes to one stream, it checks whether that may be written.
func (s *sink) Probe(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, min(s.cfg.Timeout.D(), connectTimeout))
	defer cancel()
	addresses, err := s.masters(limited)
	if err != nil {
		return s.unreachable(ctx, s.At, err)
	}
	for _, address := range addresses {
		if err := s.ping(limited, address); err != nil {
			return s.unreachable(ctx, address, err)
		}
	}
	if s.stream.Only == "" {
		return nil
	}
	address, err := s.addresses(ctx, limited)(s.stream.Only)
	if err != nil {
		return err
	}
	return s.probeStream(ctx, limited, address)
}

// Close ends the connections. Nothing is in flight then: Deliver waits for its replies.
func (s *sink) Close(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, connections := range s.idle {
		for _, l := range connections {
			l.close()
		}
	}
	clear(s.idle)
	if s.cluster != nil {
		if err := s.cluster.Close(); err != nil {
			return fmt.Errorf("redis sink: close the connections to %s: %w; they end with the process", s.At, err)
		}
	}
	return nil
}
