// Command manager is the operator: it reconciles OutboxDispatchers.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	_ "golang.org/x/crypto/x509roots/fallback" // Mozilla's roots, where the system has none: the image has no file of them
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

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
	flag.StringVar(&o.DispatcherImage, "dispatcher-image", "", "image that dispatcher pods and migration Jobs run (default the manager's own)")
	flag.Func("image-pull-secrets", "names of Secrets that the image is pulled with, in the namespace of each pod, with commas between them (default none)", list(&o.ImagePullSecrets))
	flag.Func("inherited-labels", "keys of labels that what is made for an object has from it, pods included, with commas between (default none)", list(&o.InheritedLabels))
	flag.IntVar(&o.MaxRollingUpgrades, "max-rolling-upgrades", 3, "how many dispatchers and Outboxes roll or migrate at a time for an upgrade of the operator; what changes in a resource never waits")
	flag.DurationVar(&o.ObserveInterval, "observe-interval", 10*time.Second, "time between two looks at the numbers that dispatcher pods report")
	protect := flag.Bool("dispatcher-network-policy", true, "make a NetworkPolicy for each OutboxDispatcher, which lets only the operator and gatherers of metrics reach its pods")
	flag.Func("watch-namespaces", "the namespaces to serve, with commas between (default all)", list(&o.WatchNamespaces))
	flag.Func("ignore-namespaces", "namespaces to leave to other operators, with commas between, when all others are served (default none)", list(&o.IgnoreNamespaces))
	flag.BoolVar(&o.LeaderElect, "leader-elect", false, "work only while holding the lease, so that several managers can run")
	flag.StringVar(&o.MetricsAddress, "metrics-bind-address", ":8443", "address of the metrics; 0 for none")
	flag.BoolVar(&o.MetricsInsecure, "metrics-insecure", false, "serve metrics without TLS to everybody, not over TLS to those who may get /metrics")
	flag.StringVar(&o.ProbeAddress, "health-probe-bind-address", ":8081", "address of /healthz and /readyz; 0 for none")
	level := slog.LevelInfo
	flag.TextVar(&level, "log-level", level, "the least level that is logged: debug, info, warn or error")
	flag.Parse()

	log := logr.FromSlogHandler(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	ctrl.SetLogger(log)
	klog.SetLogger(log)
	log.Info("Starting the outbox operator", "version", version)

	budget := memoryBudget("/sys/fs/cgroup/memory.max")
	log.Info("The manager has a memory budget, three quarters of its container's limit", "MiB", budget>>20)
	limitMemory(budget)
	o.NamespaceShare = budget / 16 * 3
	o.Pod = client.ObjectKey{Namespace: ownNamespace(), Name: os.Getenv("POD_NAME")}
	if *protect {
		o.OperatorNamespace = o.Pod.Namespace
	}
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

// list parses names with commas between them.
func list(names *[]string) func(string) error {
	return func(text string) error {
		*names = nil
		for name := range strings.SplitSeq(text, ",") {
			if name = strings.TrimSpace(name); name != "" {
				*names = append(*names, name)
			}
		}
		return nil
	}
}

// ownNamespace is the namespace of the manager's pod. Outside a cluster it is POD_NAMESPACE, or empty.
func ownNamespace() string {
	text, err := os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
	if err != nil {
		return os.Getenv("POD_NAMESPACE")
	}
	return strings.TrimSpace(string(text))
}

// memoryLimit is the limit that config/manager and the chart give the container.
const memoryLimit = 256 << 20

// limitMemory sets the collector's limit to two thirds of the budget, which has the program itself too, and lets it collect when
// the heap has grown by two fifths, unless GOMEMLIMIT or GOGC say otherwise.
func limitMemory(budget int64) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(40)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(budget / 3 * 2)
	}
}

// memoryBudget is three quarters of what the container may take, as the file says: 192 of 256 MiB, of which the page of config/
// says what for, and more where more OutboxDispatchers need more. Where the file says none it follows from memoryLimit.
func memoryBudget(file string) int64 {
	text, _ := os.ReadFile(file) // outside of a container there is none, and without a limit it says max
	limit, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		limit = memoryLimit
	}
	return limit / 4 * 3
}
