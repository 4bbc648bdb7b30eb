// Package unserved moves or discards events of a namespace and topic that no dispatcher serves, such as a misspelt one: no
// claim takes them, and retention removes no event that waits.
package unserved

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sqlfile"
)

//go:embed queries.sql
var files embed.FS

// batch is how many events one transaction changes.
const batch = 1000

// Name is a namespace and a topic.
type Name struct {
	Namespace string `json:"namespace"`
	Topic     string `json:"topic"`
}

func (n Name) String() string { return fmt.Sprintf("topic %q of namespace %q", n.Topic, n.Namespace) }

// Change is what becomes of the pending events of a name.
type Change struct {
	From Name
	// To is where they go; nil discards them.
	To *Name
	// Reason is why, in the words of a person. Required.
	Reason string
}

// Counts are events of a change.
type Counts struct {
	// Pending are those that there were, and Changed those that were moved or discarded.
	Pending, Changed int64
	// Duplicates are those whose dedupe key another event of the new name has: they stay.
	Duplicates int64
}

// Names returns the first 1,000 names with pending events that no worker serves, in their order, and how many events each has
// pending. It fails when the database does.
func Names(ctx context.Context, conn *pgx.Conn, schema string) (names []Name, pending []int64, err error) {
	rows, err := conn.Query(ctx, sqlfile.Reader(files, schema)("names"))
	if err != nil {
		return nil, nil, err
	}
	var n Name
	var count int64
	_, err = pgx.ForEachRow(rows, []any{&n.Namespace, &n.Topic, &count}, func() error {
		names, pending = append(names, n), append(pending, count)
		return nil
	})
	return names, pending, err
}

// Apply makes the change, a thousand events at a time; a dry run counts. The login owns the outbox's schema. It fails when a
// worker serves the name, and when the database does: then it can be run again.
func Apply(ctx context.Context, conn *pgx.Conn, schema string, c Change, dry bool) (counts Counts, err error) {
	switch {
	case c.From.Namespace == "" || c.From.Topic == "":
		return counts, errors.New("no namespace or topic; name both (--namespace, --topic)")
	case strings.TrimSpace(c.Reason) == "":
		return counts, errors.New("no reason; say why (--reason)")
	case c.To != nil && (c.To.Namespace == "" || c.To.Topic == "" || len([]rune(c.To.Namespace)) > 255 || len([]rune(c.To.Topic)) > 255):
		return counts, errors.New("the new namespace and topic have 1 to 255 characters each; name both (--to-namespace, --to-topic)")
	case c.To != nil && *c.To == c.From:
		return counts, errors.New("the new name is the old one; name another (--to-namespace, --to-topic)")
	}
	var worker *string
	if err := conn.QueryRow(ctx, sqlfile.Reader(files, schema)("served"), c.From.Namespace, c.From.Topic).Scan(&worker, &counts.Pending); err != nil {
		return counts, err
	}
	if worker != nil {
		return counts, fmt.Errorf("%s is served by %s; stop it, or wait a minute when it has ended", c.From, *worker)
	}
	if c.To != nil {
		if err := conn.QueryRow(ctx, sqlfile.Reader(files, schema)("duplicates"), c.From.Namespace, c.From.Topic, c.To.Namespace, c.To.Topic).Scan(&counts.Duplicates); err != nil {
			return counts, err
		}
	}
	if dry {
		return counts, nil
	}
	for after := int64(0); ; {
		var n int64
		var err error
		args := []any{c.From.Namespace, c.From.Topic, c.Reason, batch}
		if c.To == nil {
			err = conn.QueryRow(ctx, sqlfile.Reader(files, schema)("discard"), args...).Scan(&n)
		} else {
			err = conn.QueryRow(ctx, sqlfile.Reader(files, schema)("move"), append(args, c.To.Namespace, c.To.Topic, after)...).Scan(&n, &after)
		}
		counts.Changed += n
		var pg *pgconn.PgError
		if errors.As(err, &pg) && pg.Code == "23505" {
			err = fmt.Errorf("%w; a producer has just added an event with the dedupe key: run it again", err)
		}
		if err != nil || n < batch { // what comes meanwhile is left to the next run
			return counts, err
		}
	}
}
