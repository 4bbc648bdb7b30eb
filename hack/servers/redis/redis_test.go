package redis_test

import (
	"context"
	"strings"
	"testing"

	goredis "github.com/redis/go-redis/v9"

	"github.com/outbox-operator/outbox-operator/hack/servers/redis"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// A confirmed write is there after kill -9, at the same address.
func TestServerKeepsDataOverKill(t *testing.T) {
	s, err := redis.Start(t.Context(), redis.Options{})
	need.Server(t, err, redis.ErrMissing)
	t.Cleanup(func() {
		if err := s.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	client := goredis.NewClient(&goredis.Options{Addr: s.Address})
	defer func() { _ = client.Close() }()
	if err := client.Set(t.Context(), "kept", "yes", 0).Err(); err != nil {
		t.Fatal(err)
	}
	s.Kill()
	if err := client.Ping(t.Context()).Err(); err == nil {
		t.Error("a killed server responds, want no response")
	}
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	out, err := s.Tool(t.Context(), "redis-cli", "get", "kept").Output()
	if err != nil || strings.TrimSpace(string(out)) != "yes" {
		t.Errorf("after the restart: %q, %v", out, err)
	}
}

// The nodes share the keys.
func TestClusterNodesShareTheKeys(t *testing.T) {
	nodes, err := redis.StartCluster(t.Context(), 3, redis.Options{})
	need.Server(t, err, redis.ErrMissing)
	for _, node := range nodes {
		t.Cleanup(func() {
			if err := node.Stop(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	client := goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: []string{nodes[0].Address}})
	defer func() { _ = client.Close() }()
	for _, key := range []string{"a", "b", "c", "d", "e", "f"} {
		if err := client.Set(t.Context(), key, key, 0).Err(); err != nil {
			t.Error(err)
		}
	}
	for _, node := range nodes {
		own := goredis.NewClient(&goredis.Options{Addr: node.Address})
		defer func() { _ = own.Close() }()
		if n, err := own.DBSize(t.Context()).Result(); err != nil || n == 0 {
			t.Errorf("%s has %d keys, %v", node.Address, n, err)
		}
	}
}
