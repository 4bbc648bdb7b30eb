package main

import (
	"context"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
)

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
	if _, err := tx.Exec(ctx, `update chaos.skew set ahead = make_interval(secs => $1)`, ahead); err != nil {
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
