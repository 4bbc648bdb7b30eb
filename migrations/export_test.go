package migrations

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// testFiles makes a directory of migrations: the first is the real one, and the second and so on have these texts.
func testFiles(texts ...string) fstest.MapFS {
	first, err := files.ReadFile("0001_outbox.up.sql")
	if err != nil {
		panic(err)
	}
	all := fstest.MapFS{"0001_outbox.up.sql": {Data: first}}
	for i, text := range texts {
		all[[]string{"0002_second.up.sql", "0003_third.up.sql"}[i]] = &fstest.MapFile{Data: []byte(text)}
	}
	return all
}

// UpFiles is Up with more migrations. It waits little in each try, and tries for minutes: a test ends what it waits for.
func UpFiles(ctx context.Context, conn *pgx.Conn, texts ...string) ([]Applied, error) {
	all, err := load(testFiles(texts...), "outbox")
	if err != nil {
		return nil, err
	}
	return up(ctx, conn, "outbox", all, patience{100 * time.Millisecond, 2000, 50 * time.Millisecond})
}

// UpFilesOnce is UpFiles that does not try again.
func UpFilesOnce(ctx context.Context, conn *pgx.Conn, texts ...string) ([]Applied, error) {
	all, err := load(testFiles(texts...), "outbox")
	if err != nil {
		return nil, err
	}
	return up(ctx, conn, "outbox", all, patience{100 * time.Millisecond, 0, 0})
}

func TestRetry(t *testing.T) {
	t.Parallel()
	p := patience{retries: 3}
	for code, want := range map[string]int{"55P03": 4, "40P01": 4, "42501": 1} {
		tries := 0
		err := p.retry(t.Context(), func() error { tries++; return &pgconn.PgError{Code: code} })
		if tries != want || err == nil || (want > 1) != strings.Contains(err.Error(), "pg_stat_activity") {
			t.Errorf("code %s: %d tries, %v, want %d", code, tries, err, want)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	cancel(stop)
	if err := (patience{retries: 3, pause: time.Hour}).retry(ctx, func() error { return &pgconn.PgError{Code: "55P03"} }); !errors.Is(err, stop) {
		t.Errorf("after the end of ctx: %v", err)
	}
}
