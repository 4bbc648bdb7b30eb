// Command kubectl-outbox is `kubectl outbox`: what people on call ask of an OutboxDispatcher.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/outbox-operator/outbox-operator/controllers/internal/plugin"
)

// version is set by the build, with -ldflags "-X main.version=...".
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	streams := genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}
	if err := plugin.New(version, streams, plugin.Options{}).ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "kubectl outbox:", err)
		os.Exit(1)
	}
}
