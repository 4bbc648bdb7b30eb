package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A build takes what it takes, and each half minute the demo says what it waits for.
func TestAwaitSaysWhatItWaitsFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		err := await(t.Context(), &out, noLimit, "the build", func(context.Context) error {
			time.Sleep(45*time.Minute + time.Second)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(lines) != 90 || strings.TrimSpace(lines[89]) != "still waiting for the build (45m0s)" {
			t.Errorf("%d lines, the last %q", len(lines), lines[len(lines)-1])
		}
	})
}

// The error of a step names the step: one that is late, one that is interrupted, one that fails.
func TestAwaitNamesTheStep(t *testing.T) {
	broken := errors.New("no space left")
	waits := func(ctx context.Context) error { <-ctx.Done(); return errors.New("signal: killed") }
	for want, step := range map[string]func(ctx context.Context, stop func()) error{
		"wait for the pods: not done after 1m0s: signal: killed": func(ctx context.Context, _ func()) error {
			return await(ctx, &strings.Builder{}, time.Minute, "the pods", waits)
		},
		"interrupted while waiting for the pods": func(ctx context.Context, stop func()) error {
			time.AfterFunc(time.Second, stop)
			return await(ctx, &strings.Builder{}, time.Minute, "the pods", waits)
		},
		"no space left": func(ctx context.Context, _ func()) error {
			return await(ctx, &strings.Builder{}, time.Minute, "the pods", func(context.Context) error { return broken })
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			if err := step(ctx, stop); err == nil || err.Error() != want {
				t.Errorf("%v, want %s", err, want)
			}
		})
	}
}
