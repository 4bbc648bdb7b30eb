package database

import (
	"context"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

const isolation = "read committed"

// pooled marks a connection, in its custom data, that leads to a pooler.
const pooled = "pooled"

// isolate makes READ COMMITTED the session's default, or marks the connection as pooled. The dispatcher's
// statements are made for that level. At a higher one, which a login or a database may have as its default,
// claims that meet each other fail.
//
// Nothing is set behind a pooler, such as PgBouncer in transaction mode: the session is shared with others,
// and PgBouncer refuses the setting as a parameter of the connection. There a transaction that fails for its
// level is tried again at READ COMMITTED (package pgstore), and [Isolation] reports the default.
//
// A pooler that shares sessions has to give its clients process ids of its own, or it could not know whose
// statement a client wants to cancel.
func isolate(ctx context.Context, conn *pgconn.PgConn) error {
	result, err := conn.Exec(ctx, "select set_config('default_transaction_isolation', '"+isolation+"', false) where pg_backend_pid() = "+
		strconv.FormatUint(uint64(conn.PID()), 10)).ReadAll()
	if err == nil && len(result[0].Rows) == 0 {
		conn.CustomData()[pooled] = true
	}
	return err
}

// Isolation says in a few words at which level transactions of the pool run. The error says that the login's
// default is another than READ COMMITTED and cannot be set by the dispatcher, and what to do.
func Isolation(ctx context.Context, pool *pgxpool.Pool) (string, error) {
	var effective, standard, user string
	err := pool.QueryRow(ctx, `select setting, reset_val, current_user from pg_settings where name = 'default_transaction_isolation'`).
		Scan(&effective, &standard, &user)
	switch {
	case err != nil:
		return "", fmt.Errorf("read the default isolation level: %w", err)
	case effective != isolation:
		return "", fmt.Errorf("transactions of %s run at %s behind the connection pooler, where claims that meet each other must be tried again; run: alter role %s set default_transaction_isolation = 'read committed'",
			user, effective, pgx.Identifier{user}.Sanitize())
	case standard != isolation:
		return fmt.Sprintf("%s, set by the dispatcher: the default of %s is %s", isolation, user, standard), nil
	}
	return isolation, nil
}
