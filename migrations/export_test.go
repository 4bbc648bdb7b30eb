package migrations

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// testFiles makes a directory of migrations: the real ones, and then a second and a third with these texts.
func testFiles(texts ...string) fstest.MapFS {
	names, err := fs.Glob(files, "*.up.sql")
	if err != nil {
		panic(err)
	}
	all := fstest.MapFS{}
	for _, name := range names {
		text, err := files.ReadFile(name)
		if err != nil {
			panic(err)
		}
		all[name] = &fstest.MapFile{Data: text}
	}
	for i, text := range texts {
		all[fmt.Sprintf("%04d_%s.up.sql", len(names)+1+i, []string{"second", "third"}[i])] = &fstest.MapFile{Data: []byte(text)}
	}
	return all
}

// UpFiles is Up with more migrations. It waits little in each try, and tries for minutes: a test ends what it waits for.
func UpFiles(ctx context.Context, conn *pgx.Conn, texts ...string) ([]Applied, error) {
	all, err := load(testFiles(texts...), "outbox")
	if err != nil {
		return nil, err
	}
	return up(ctx, conn, "outbox", all, lockWait{100 * time.Millisecond, 2000, 50 * time.Millisecond, time.Minute, time.Minute})
}

// UpTo applies the first migrations alone.
func UpTo(ctx context.Context, conn *pgx.Conn, version int) error {
	all, err := load(files, "outbox")
	if err != nil {
		return err
	}
	_, err = up(ctx, conn, "outbox", all[:version], patient)
	return err
}

// UpFilesOnce is UpFiles that does not try again.
func UpFilesOnce(ctx context.Context, conn *pgx.Conn, texts ...string) ([]Applied, error) {
	all, err := load(testFiles(texts...), "outbox")
	if err != nil {
		return nil, err
	}
	return up(ctx, conn, "outbox", all, lockWait{timeout: 100 * time.Millisecond, busy: time.Minute})
}

func TestRetryOnLockErrorsAlone(t *testing.T) {
	t.Parallel()
	p := lockWait{timeout: time.Hour, retries: 3}
	for code, want := range map[string]int{"55P03": 4, "40P01": 4, "42501": 1} {
		tries := 0
		err := p.retry(t.Context(), nil, "outbox", func() error { tries++; return &pgconn.PgError{Code: code} })
		need.That(t, tries == want && err != nil && (want > 1) == strings.Contains(err.Error(), "pg_stat_activity"), "code %s: %d tries, %v, want %d", code, tries, err, want)
	}
	tries := 0
	err := lockWait{timeout: 1, retries: 1_000_000}.retry(t.Context(), nil, "outbox", func() error { tries++; return &pgconn.PgError{Code: "55P03"} })
	need.That(t, tries <= 900_000 && err != nil, "%d tries in a millisecond, %v", tries, err)
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	cancel(stop)
	if err := (lockWait{retries: 3, pause: time.Hour}).retry(ctx, nil, "outbox", func() error { return &pgconn.PgError{Code: "55P03"} }); !errors.Is(err, stop) {
		t.Errorf("after the end of ctx: %v", err)
	}
}

// SetJournalOnce turns the journal on, and does not try again.
func SetJournalOnce(ctx context.Context, conn *pgx.Conn) error {
	_, err := setJournal(ctx, conn, "outbox", Journal{Enabled: true, Retention: 24 * time.Hour}, lockWait{timeout: 100 * time.Millisecond, busy: time.Minute})
	return err
}

// TransactSoon is Transact that reports its waits at once, and waits for another migrator no more than that long.
func TransactSoon(ctx context.Context, conn *pgx.Conn, busy time.Duration, work func(pgx.Tx) error) error {
	return lockWait{100 * time.Millisecond, 2000, 10 * time.Millisecond, busy, 0}.transact(ctx, conn, "outbox", work)
}

// Migrators is what a migrator locks.
const Migrators = migrators
