// Command manager is the operator: it reconciles OutboxDispatchers.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/outbox-operator/outbox-operator/controllers/internal/manager"
)

// version is set by the build, with -ldflags "-X main.version=...".
var version = "dev"

func main() {
	if err := run(ctrl.SetupSignalHandler()); err != nil {
		fmt.Fprintln(os.Stderr, "manager:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	var o manager.Options
	flag.StringVar(&o.DispatcherImage, "dispatcher-image", "", "image that dispatcher pods and migration Jobs run (required)")
	flag.DurationVar(&o.ObserveInterval, "observe-interval", 10*time.Second, "time between two looks at the numbers that dispatcher pods report")
	flag.StringVar(&o.WatchNamespace, "watch-namespace", "", "the only namespace to serve (default all)")
	flag.BoolVar(&o.LeaderElect, "leader-elect", false, "work only while holding the lease, so that several managers can run")
	flag.StringVar(&o.MetricsAddress, "metrics-bind-address", ":8443", "address of the metrics, over TLS, for those who may get /metrics; 0 for none")
	flag.StringVar(&o.ProbeAddress, "health-probe-bind-address", ":8081", "address of /healthz and /readyz; 0 for none")
	flag.Parse()

	log := logr.FromSlogHandler(slog.NewJSONHandler(os.Stderr, nil))
	ctrl.SetLogger(log)
	klog.SetLogger(log)
	log.Info("Starting the outbox operator", "version", version, "dispatcherImage", o.DispatcherImage)

	cfg, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("find the API server: %w; set --kubeconfig, or run in a cluster", err)
	}
	mgr, err := manager.New(ctx, cfg, o)
	if err != nil {
		return err
	}
	return mgr.Start(ctx)
}
