// Command dispatcher delivers the events of a transactional outbox. See `dispatcher --help`.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	_ "golang.org/x/crypto/x509roots/fallback" // Mozilla's roots, where the system has none: the image has no file of them

	"github.com/outbox-operator/outbox-operator/dispatcher/internal/cli"
)

// version is set by the build, with -ldflags "-X main.version=...".
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	code := cli.Main(ctx, version, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
