package pgstore

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Sizes returns the bytes on disk of each table by its name, with indexes (CONTRACT C-95). It queries the
// file system for a file for each GiB, and reads no table. The error is the database's.
func (s *Store) Sizes(ctx context.Context) (map[string]int64, error) {
	rows, err := s.pool.Query(ctx, s.sql.sizes)
	if err != nil {
		return nil, s.wrap("read the tables' sizes", err)
	}
	sizes := map[string]int64{}
	var table string
	var bytes int64
	_, err = pgx.ForEachRow(rows, []any{&table, &bytes}, func() error { sizes[table] = bytes; return nil })
	if err != nil {
		return nil, s.wrap("read the tables' sizes", err)
	}
	return sizes, nil
}
