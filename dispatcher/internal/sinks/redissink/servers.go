package redissink

import (
	"context"
	"net"
	"sync"

	"github.com/redis/go-redis/v9"
)

// newCluster returns what knows which node has which slot. Deliveries do not go through it.
func (s *sink) newCluster() *redis.ClusterClient {
	return redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: s.cfg.Addresses, Dialer: s.dial, CredentialsProviderContext: s.credentials,
		PoolSize: 1, PipelinePoolSize: -1, MaxRedirects: -1, DialerRetries: 1, DialTimeout: connectTimeout,
		ReadTimeout: connectTimeout, ContextTimeoutEnabled: true, Protocol: 2, DisableIdentity: true,
	})
}

// addresses returns a function that finds the server of a stream, for one delivery: each is looked up once.
func (s *sink) addresses(ctx, limited context.Context) func(stream string) (string, error) {
	type reply struct {
		address string
		err     error
	}
	known := map[string]reply{}
	return func(stream string) (string, error) {
		if s.cluster == nil {
			return s.cfg.Addresses[0], nil
		}
		a, ok := known[stream]
		if !ok {
			if node, err := s.cluster.MasterForKey(limited, stream); err != nil {
				a.err = s.unreachable(ctx, s.At, err)
			} else {
				a.address = node.Options().Addr
			}
			known[stream] = a
		}
		return a.address, a.err
	}
}

// masters are the addresses of all servers that take events, as they are now.
func (s *sink) masters(ctx context.Context) (addresses []string, err error) {
	if s.cluster == nil {
		return s.cfg.Addresses, nil
	}
	var mu sync.Mutex
	err = s.cluster.ForEachMaster(ctx, func(_ context.Context, node *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		addresses = append(addresses, node.Options().Addr)
		return nil
	})
	return addresses, err
}

// redirect turns an entry to the node that its reply names, and reports whether there is one. Such an
// reply says that the entry was not added.
func (s *sink) redirect(en *entry) bool {
	if s.cluster == nil || en.err == nil {
		return false
	}
	to, moved := redis.IsMovedError(en.err)
	if moved {
		s.cluster.ReloadState(context.Background()) // in the background
	} else if to, en.redirected = redis.IsAskError(en.err); !en.redirected {
		return false
	}
	host, port, err := net.SplitHostPort(to)
	if err != nil {
		return false
	}
	if host == "" { // the node does not know its own name: it is the one that replied
		host, _, _ = net.SplitHostPort(en.address)
	}
	en.address, en.redirected = net.JoinHostPort(host, port), !moved
	return true
}
