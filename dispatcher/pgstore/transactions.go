package pgstore

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// OldestTransaction returns what has held vacuum back for longest, or nil when nothing does. It reads
// no table, and is meant to be called every quarter of a minute or so. Short transactions are reported like long ones.
//
// A dispatcher's rights are enough to see everything. Since when a session of another role has had its
// transaction is visible only to members of pg_read_all_stats; for others it is when this process first saw it.
// The error is the database's.
func (s *Store) OldestTransaction(ctx context.Context) (*dispatcher.OldestTransaction, error) {
	found, err := collect(ctx, s, "look for the oldest transaction", s.sql["oldest_transaction"], pgx.RowToStructByPos[holder])
	if err != nil {
		return nil, err
	}
	return s.holders.oldest(found), nil
}

// holder is a row of the statement oldest_transaction.
type holder struct {
	Kind, Name string
	Since      *time.Time
	Mark       string
	Now        time.Time
}

// holders remembers when the holders whose beginning the server does not show were seen first.
type holders struct {
	mu   sync.Mutex
	seen map[holder]time.Time // Since and Now are not set
}

// oldest returns the holder that began first.
func (h *holders) oldest(found []holder) (oldest *dispatcher.OldestTransaction) {
	h.mu.Lock()
	defer h.mu.Unlock()
	seen := map[holder]time.Time{}
	for _, f := range found {
		since := f.Now
		if f.Since != nil {
			since = *f.Since
		} else {
			same := holder{Kind: f.Kind, Name: f.Name, Mark: f.Mark}
			if before, ok := h.seen[same]; ok {
				since = before
			}
			seen[same] = since
		}
		if oldest == nil || since.Before(oldest.Since) {
			oldest = &dispatcher.OldestTransaction{
				Kind: dispatcher.HolderKind(f.Kind), Name: f.Name, Since: since, Age: max(0, f.Now.Sub(since)),
			}
		}
	}
	h.seen = seen
	return oldest
}
