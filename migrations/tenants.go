package migrations

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// UpTenants makes the index with which dispatchers give each tenant its turn (CONTRACT C-37), and reports whether it was
// missing. It needs the rights of an owner, and blocks no producer: the index is built concurrently. It may run twice,
// and at the same time as another process. An event that waits has one more index entry from then on. It fails when the
// database does.
func UpTenants(ctx context.Context, conn *pgx.Conn, schema string) (made bool, err error) {
	if err := checkSchemaName(schema); err != nil {
		return false, err
	}
	err = patient.retry(ctx, conn, schema, func() (err error) {
		if err := lockMigrators(ctx, conn, "pg_try_advisory_lock", schema); err != nil {
			return err
		}
		defer func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
			defer cancel()
			if _, unlockErr := conn.Exec(ctx, `select pg_advisory_unlock(`+migrators+`)`, schema); err == nil {
				err = unlockErr
			}
		}()
		made, err = makeTenantIndex(ctx, conn, schema)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("make the index of tenants in schema %q: %w", schema, err)
	}
	return made, nil
}

func makeTenantIndex(ctx context.Context, conn *pgx.Conn, schema string) (made bool, err error) {
	name := pgx.Identifier{schema, "outbox_events_tenant"}.Sanitize()
	var valid *bool // nil when there is none
	if err := conn.QueryRow(ctx, `select (select indisvalid from pg_index where indexrelid = to_regclass($1))`, name).Scan(&valid); err != nil {
		return false, err
	}
	if valid != nil && *valid {
		return false, nil
	}
	if valid != nil { // what a broken try has left
		if _, err := conn.Exec(ctx, `drop index concurrently `+name); err != nil {
			return false, err
		}
	}
	// Its condition is that of outbox_events_live in other words, so that other claims do not take it.
	_, err = conn.Exec(ctx, `create index concurrently outbox_events_tenant on `+pgx.Identifier{schema, "outbox_events"}.Sanitize()+`
		(namespace, topic, coalesce(tenant_id, '00000000-0000-0000-0000-000000000000'), next_attempt_at, id) where coalesce(live, false)`)
	return err == nil, err
}
