package nats

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/outbox-operator/outbox-operator/hack/internal/daemon"
)

// StartCluster makes n servers that know each other. It returns when each is ready, which is before they
// have elected a leader. It returns an error when it is not ready before ctx ends, or cannot be installed.
func StartCluster(ctx context.Context, n int, opts Options) (servers []*Server, err error) {
	var routes []string
	for range n {
		port, err := daemon.FreePort()
		if err != nil {
			return nil, err
		}
		routes = append(routes, fmt.Sprintf("\"nats://127.0.0.1:%d\"", port))
	}
	for i := range n {
		own := opts
		own.Settings += fmt.Sprintf("\ncluster: {name: test, listen: %s, routes: [%s]}\n",
			strings.ReplaceAll(routes[i], "nats://", ""), strings.Join(routes, ", "))
		s, err := Start(ctx, own)
		if err != nil {
			for _, s := range servers {
				err = errors.Join(err, s.Stop(ctx))
			}
			return nil, err
		}
		servers = append(servers, s)
	}
	return servers, nil
}
