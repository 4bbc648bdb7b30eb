package daemon

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// Serve is [Start] for a server with a name, for errors. Its output goes to the end of the file log. It
// returns when the server is ready, which is when ready returns nil.
func Serve(ctx context.Context, name string, cmd *exec.Cmd, owner *syscall.Credential, atParentExit syscall.Signal, log string, ready func(context.Context) error) (*Process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log of %s: %w", name, err)
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	p, err := Start(cmd, owner, atParentExit)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if err = ready(ctx); err == nil {
			return p, nil
		}
		select {
		case <-p.Done:
			return nil, fmt.Errorf("%s ended at once; its log %s ends: %s", name, log, Tail(log))
		case <-ctx.Done():
			p.End(atParentExit)
			return nil, fmt.Errorf("%s was not ready in time: %w; its log %s ends: %s", name, err, log, Tail(log))
		case <-tick.C:
		}
	}
}

// Listens is for [Serve]: the server is ready when it accepts connections.
func Listens(address string) func(context.Context) error {
	return func(ctx context.Context) error {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err != nil {
			return err
		}
		return conn.Close()
	}
}

// Shutdown signals the child to end, and ends it with kill -9 when ctx ends first.
func (p *Process) Shutdown(ctx context.Context) {
	p.Signal(syscall.SIGCONT)
	p.Signal(syscall.SIGTERM)
	select {
	case <-p.Done:
	case <-ctx.Done():
		p.End(syscall.SIGKILL)
	}
}
