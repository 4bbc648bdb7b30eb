package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outbox-operator/outbox-operator/hack/internal/daemon"
)

// The program that is put to the test.
const dispatcherPackage = "github.com/outbox-operator/outbox-operator/dispatcher/cmd/dispatcher"

// clockVariable holds the error of a dispatcher's clock, as a Go duration.
const clockVariable = "OUTBOX_CHAOS_CLOCK"

// buildDispatcher builds the dispatcher.
func buildDispatcher(ctx context.Context, output string, flags ...string) error {
	args := append([]string{"build", "-o", output}, flags...)
	cmd := exec.Command("go", append(args, dispatcherPackage)...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	p, err := daemon.Start(cmd, nil, syscall.SIGKILL) // so that it ends with this process, however that ends
	if err != nil {
		return fmt.Errorf("build the dispatcher: %w", err)
	}
	select {
	case <-p.Done:
	case <-ctx.Done():
		_ = syscall.Kill(-p.Pid(), syscall.SIGKILL) // with the compilers that it started
		<-p.Done
	}
	if !cmd.ProcessState.Success() {
		return fmt.Errorf("build the dispatcher: %s: %s", cmd.ProcessState, out.Bytes())
	}
	return nil
}

// buildWrongClock builds the same code with a wrong clock: a copy of Go's package time, in which Now
// adds what the environment says to the wall clock. The monotonic clock stays right, as it does when
// a person sets a machine's clock.
func buildWrongClock(ctx context.Context, dir, output string) error {
	root, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return fmt.Errorf("go env GOROOT: %w", err)
	}
	original := filepath.Join(strings.TrimSpace(string(root)), "src", "time", "time.go")
	source, err := os.ReadFile(original)
	if err != nil {
		return fmt.Errorf("read Go's package time: %w", err)
	}
	head := []byte("func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n")
	if bytes.Count(source, head) != 1 {
		return fmt.Errorf("%s does not begin Now as expected, so it cannot be given a wrong clock; correct clock.go for this version of Go", original)
	}
	source = bytes.Replace(source, head, append(head, "\tsec += wrongBy\n"...), 1)
	source = bytes.Replace(source, []byte("\nimport (\n"), []byte("\nimport (\n\t\"syscall\"\n"), 1)
	source = append(source, `
var wrongBy = func() int64 {
	text, _ := syscall.Getenv("`+clockVariable+`")
	d, _ := ParseDuration(text)
	return int64(d / Second)
}()
`...)
	copied := filepath.Join(dir, "time.go")
	if err := os.WriteFile(copied, source, 0o600); err != nil {
		return err
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {original: copied}})
	if err != nil {
		return err
	}
	file := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(file, overlay, 0o600); err != nil {
		return err
	}
	return buildDispatcher(ctx, output, "-overlay", file)
}

// serverClock is loaded into the server: its clock is ahead by the seconds in a file.
//
//go:embed server_clock.c.txt
var serverClock string

// clockLibrary is serverClock, compiled; it is missing without a C compiler.
const clockLibrary = "server-clock.so"

// buildServerClock compiles it. Without a C compiler it does nothing.
func buildServerClock(ctx context.Context, dir string) error {
	compiler, err := exec.LookPath("cc")
	if err != nil {
		return nil
	}
	source := filepath.Join(dir, "server_clock.c")
	if err := os.WriteFile(source, []byte(serverClock), 0o600); err != nil {
		return err
	}
	if out, err := exec.CommandContext(ctx, compiler, "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o", filepath.Join(dir, clockLibrary), source).CombinedOutput(); err != nil {
		return fmt.Errorf("compile the server's clock: %w: %s", err, out)
	}
	return os.Chmod(dir, 0o711) // the server runs as another user
}

// openClock makes the file with what the server's clock is ahead, and returns the environment that has the server read it:
// none where its clock does not jump.
func (w *world) openClock() (env []string, err error) {
	if !slices.Contains(w.kinds, jump) {
		return nil, nil
	}
	library := filepath.Join(w.binaries, clockLibrary)
	if _, err := os.Stat(library); err != nil {
		fmt.Fprintln(w.out, "Without jumps of the database's clock: there is no C compiler.")
		w.kinds = slices.DeleteFunc(slices.Clone(w.kinds), func(k kind) bool { return k == jump })
		return nil, nil
	}
	w.skew = filepath.Join(w.dir, "skew")
	if err := errors.Join(os.Chmod(w.dir, 0o711), os.WriteFile(w.skew, make([]byte, 8), 0o644)); err != nil {
		return nil, err
	}
	return []string{"LD_PRELOAD=" + library, "OUTBOX_CHAOS_SKEW=" + w.skew}, nil
}

// jumpClock has the database's clock be 4 to 11 seconds ahead or behind, for a while. The fault ends when what was written
// by the later of the two times is due by the earlier one. Next to other load, statements may hold the witness's table
// for as long as setClock waits: then the clock does not jump.
func (w *world) jumpClock(ctx context.Context, f fault) error {
	ahead := 4 + f.pick%8
	if f.pick/8%2 == 0 {
		ahead = -ahead
		sleep(ctx, time.Until(w.began.Add(20*time.Second))) // what is from before the journal began is not compared
	}
	defer w.begin(f.kind, uuid.Nil, "%d s ahead for %s", ahead, f.lasts)()
	if err := w.setClock(ctx, ahead, time.Minute); locked(err) {
		w.log(f.kind, "the clock stays: %v", err)
		return nil
	} else if err != nil {
		return err
	}
	sleep(ctx, f.lasts)
	err := w.setClock(context.WithoutCancel(ctx), 0, 5*time.Minute)
	sleep(ctx, time.Duration(max(ahead, -ahead))*time.Second)
	return err
}

// setClock changes the clock between two transactions of the witness, which notes the right time. A claim that stopped
// half-way is one: it waits for that one until the time is over, and returns its error then.
func (w *world) setClock(ctx context.Context, ahead int, wait time.Duration) error {
	for until := time.Now().Add(wait); ; {
		if err := w.trySetClock(ctx, ahead); !locked(err) || time.Now().After(until) || !sleep(ctx, 100*time.Millisecond) {
			return err
		}
	}
}

// locked says that another transaction has the table: lock_not_available.
func locked(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Code == "55P03"
}

func (w *world) trySetClock(ctx context.Context, ahead int) error {
	tx, err := w.admin.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	if _, err := tx.Exec(ctx, `set local lock_timeout = '500ms'; lock table chaos.audit in exclusive mode`); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, `update chaos.skew set before = ahead, ahead = make_interval(secs => $1)`, ahead); err != nil {
		return err
	}
	file, err := os.OpenFile(w.skew, os.O_WRONLY, 0) // not emptied: the server has it mapped
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := file.Write(binary.NativeEndian.AppendUint64(nil, uint64(ahead))); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

// stall is not a fault of the schedule: the machine was so busy that a process stood still for a while. A delivery may
// time out then, or a lease expire.
const stall kind = "stall"

// nap is not one either: a dispatcher stands still for a moment during a choke.
const nap kind = "nap"

const (
	stallTick = 50 * time.Millisecond
	// stallFrom is well above what a scheduler does, and well below every timeout of a run.
	stallFrom = 400 * time.Millisecond
)

// pause is one stall, as the process that stood still noticed it.
type pause struct {
	From, To time.Time
}

// noteStalls writes down when this process stood still, until ctx ends.
func noteStalls(ctx context.Context, journal io.Writer) error {
	tick := time.NewTicker(stallTick)
	defer tick.Stop()
	for last := time.Now(); ; {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		now := time.Now()
		if now.Sub(last) > stallFrom {
			if err := json.NewEncoder(journal).Encode(pause{last, now}); err != nil {
				return err
			}
		}
		last = now
	}
}
