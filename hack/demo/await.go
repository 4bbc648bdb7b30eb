package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// noLimit is for what builds or installs: how long that takes depends on the machine, and Ctrl-C ends it.
const noLimit time.Duration = 0

// heartbeat is the time between two lines of a step that takes long.
const heartbeat = 30 * time.Second

// await runs one step and, while that lasts, says again and again what it waits for. A step that is not done
// within its limit fails, and the error names the step.
func await(ctx context.Context, out io.Writer, limit time.Duration, what string, step func(context.Context) error) error {
	begin := time.Now()
	late := fmt.Errorf("not done after %s", limit)
	timed, cancel := ctx, context.CancelFunc(func() {})
	if limit != noLimit {
		timed, cancel = context.WithTimeoutCause(ctx, limit, late)
	}
	defer cancel()

	done := make(chan error, 1)
	go func() { done <- step(timed) }()
	tick := time.NewTicker(heartbeat)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			switch {
			case err == nil:
				return nil
			case ctx.Err() != nil:
				return fmt.Errorf("interrupted while waiting for %s", what)
			case errors.Is(context.Cause(timed), late):
				return fmt.Errorf("wait for %s: %w: %w", what, late, err)
			}
			return err
		case <-tick.C:
			fmt.Fprintf(out, "   still waiting for %s (%s)\n", what, time.Since(begin).Round(time.Second))
		}
	}
}
