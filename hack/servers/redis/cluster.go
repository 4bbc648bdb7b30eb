package redis

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

const slots = 16384

// StartCluster makes a cluster of n masters, which share the slots evenly, and waits until it is ready.
// It returns an error when it is not ready before ctx ends, or cannot be installed.
func StartCluster(ctx context.Context, n int, opts Options) (nodes []*Server, err error) {
	defer func() {
		if err != nil {
			for _, node := range nodes {
				err = errors.Join(err, node.Stop(ctx))
			}
			nodes = nil
		}
	}()
	settings := map[string]string{"cluster-enabled": "yes"}
	maps.Copy(settings, opts.Settings)
	opts.Settings = settings
	for range n {
		node, err := Start(ctx, opts)
		if err != nil {
			return nodes, err
		}
		nodes = append(nodes, node)
	}
	for i, node := range nodes {
		if err := node.join(ctx, nodes[0], i*slots/n, (i+1)*slots/n-1); err != nil {
			return nodes, fmt.Errorf("add %s to the cluster: %w", node.Address, err)
		}
	}
	for _, node := range nodes {
		if err := node.awaitCluster(ctx, n); err != nil {
			return nodes, err
		}
	}
	return nodes, nil
}

// join gives the node its slots and has it meet another one.
func (s *Server) join(ctx context.Context, other *Server, first, last int) error {
	client := redis.NewClient(&redis.Options{Addr: s.Address})
	defer func() { _ = client.Close() }()
	if err := client.ClusterAddSlotsRange(ctx, first, last).Err(); err != nil || s == other {
		return err
	}
	otherClient := redis.NewClient(&redis.Options{Addr: other.Address})
	defer func() { _ = otherClient.Close() }()
	bus, err := otherClient.ConfigGet(ctx, "cluster-port").Result()
	if err != nil {
		return err
	}
	host, port, err := net.SplitHostPort(other.Address)
	if err != nil {
		return err
	}
	return client.Do(ctx, "cluster", "meet", host, port, bus["cluster-port"]).Err()
}

// awaitCluster waits until the node knows all others.
func (s *Server) awaitCluster(ctx context.Context, n int) error {
	client := redis.NewClient(&redis.Options{Addr: s.Address})
	defer func() { _ = client.Close() }()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		info, err := client.ClusterInfo(ctx).Result()
		lines := strings.Fields(info)
		if err == nil && slices.Contains(lines, "cluster_state:ok") && slices.Contains(lines, fmt.Sprintf("cluster_known_nodes:%d", n)) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the cluster is not ready at %s: %w: %w: %s", s.Address, ctx.Err(), err, info)
		case <-tick.C:
		}
	}
}
