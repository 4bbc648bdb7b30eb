package migrations

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Kind is what a role does with the outbox.
type Kind string

// The kinds of roles.
const (
	// Dispatcher claims, writes outcomes back, removes what retention says, counts, and reports that it
	// runs.
	Dispatcher Kind = "dispatcher"
	// Producer calls enqueue and enqueue_batch, and takes events back by withdraw and withdraw_batch.
	Producer Kind = "producer"
	// ReplayLogin replays and discards dead letters. It reads dead letters, and events without payload, headers and keys.
	// It changes them only by the functions of an operation.
	ReplayLogin Kind = "replay"
	// M10Worker claims, completes and publishes by the functions of M10, which [UpM10] installs.
	M10Worker Kind = "m10"
	// OverviewProducer inserts into the view that [UpOverview] makes, and reads it.
	OverviewProducer Kind = "overview"
)

// Grants returns the statements that give a role the rights its kind uses, and no more. They are
// for the owner to run, after each migration, and can be run again.
func Grants(schema, role string, kind Kind) []string {
	on := func(object string) string { return pgx.Identifier{schema, object}.Sanitize() }
	to := " to " + pgx.Identifier{role}.Sanitize()
	if kind == M10Worker {
		return m10Grants(to)
	}
	if kind == OverviewProducer {
		return []string{"grant usage on schema " + OverviewSchema + to, "grant select, insert on table " + OverviewSchema + ".events" + to}
	}
	grants := []string{"grant usage on schema " + pgx.Identifier{schema}.Sanitize() + to}
	switch kind {
	case Dispatcher:
		grants = append(grants,
			"grant select, update, delete on table "+on("outbox_events")+to,
			"grant select, insert, delete, update (resolution, resolved_at, resolved_by, notify_at, notify_attempts, notified_at) on table "+on("outbox_dead_letters")+to,
			"grant usage on sequence "+on("outbox_leases")+to,
			"grant select on table "+on("outbox_fence")+to,
			"grant execute on function "+on("outbox_fence_raise")+to,
			"grant execute on function "+on("outbox_fence_down")+to,
			"grant execute on function "+on("outbox_sequences_behind")+to,
			"grant execute on function "+on("outbox_adoption_rows")+to,
			"grant execute on function "+on("outbox_copy")+to,
			"grant select, insert, update, delete on table "+on("outbox_workers")+to,
			"grant select, insert, update, delete on table "+on("outbox_rates")+to,
			"grant select, insert, update on table "+on("outbox_sweeps")+to,
			"grant select on table "+on("outbox_replays")+to,
			"grant execute on function "+on("outbox_replay_sweep")+to,
			"grant execute on function "+on("outbox_replay_claims")+to,
			"grant select on table "+on("outbox_journal")+to,
			"grant select on table "+on("outbox_journal_settings")+to,
			"grant execute on function "+on("outbox_journal_keep")+to,
			"grant execute on function "+on("outbox_journal_digest")+to,
			"grant select on table "+on("outbox_migrations")+to)
	case Producer:
		grants = append(grants,
			"grant execute on function "+on("enqueue")+to,
			"grant execute on function "+on("enqueue_batch")+to,
			"grant execute on function "+on("withdraw")+to,
			"grant execute on function "+on("withdraw_batch")+to)
	case ReplayLogin:
		grants = append(grants,
			"grant select (id, seq, namespace, topic, key_hash, live, status) on table "+on("outbox_events")+to,
			"grant select on table "+on("outbox_dead_letters")+to,
			"grant select on table "+on("outbox_replays")+to,
			"grant execute on function "+on("outbox_replay_claims")+to,
			"grant execute on function "+on("outbox_replay_begin")+to,
			"grant execute on function "+on("outbox_replay_step")+to,
			"grant execute on function "+on("outbox_replay_observe")+to,
			"grant execute on function "+on("outbox_replay_stop")+to,
			"grant execute on function "+on("outbox_sequences_behind")+to,
			"grant select (namespace, topics, ordered, blocks, paused, paused_topics, seen_at) on table "+on("outbox_workers")+to,
			"grant select on table "+on("outbox_migrations")+to)
	}
	return grants
}

// RequireData returns the statement that has enqueue and enqueue_batch refuse an event of a role in a transaction that has written
// nothing before, since that is not the transaction of the data (CONTRACT C-10). It is for a role that never enqueues without data,
// and holds from its next login on. PostgreSQL lets a superuser run it, and from 15 on whoever may "set on parameter" and alter the role.
func RequireData(role string) string {
	return "alter role " + pgx.Identifier{role}.Sanitize() + " set outbox.require_data = on"
}

// m10Grants are all in the schema of M10, whose functions run with the owner's rights.
func m10Grants(to string) []string {
	grants := []string{"grant usage on schema " + M10Schema + to}
	for _, function := range m10Functions {
		grants = append(grants, "grant execute on function "+M10Schema+"."+function+to)
	}
	return append(grants,
		"grant select, update (process_after), delete on table "+M10Schema+".outbox"+to,
		"grant select on table "+M10Schema+".distributed_locks"+to)
}

// right of a role to execute the functions of a name.
type right struct {
	function string
	grantee  string // "" is public
	option   bool   // it may grant the right
}

// functionRights are those that roles other than the owner have on the schema's functions.
func functionRights(ctx context.Context, tx pgx.Tx, schema string) ([]right, error) {
	const look = `select p.proname, coalesce(r.rolname, ''), bool_or(a.is_grantable)
		from pg_proc as p
		cross join lateral aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) as a
		left join pg_roles as r on r.oid = a.grantee
		where p.pronamespace = $1::text::regnamespace and a.privilege_type = 'EXECUTE' and a.grantee <> p.proowner
		group by 1, 2
		order by 1, 2`
	rows, err := tx.Query(ctx, look, pgx.Identifier{schema}.Sanitize())
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (r right, err error) {
		err = row.Scan(&r.function, &r.grantee, &r.option)
		return r, err
	})
}

// restoreRights grants again the rights on a function that a migration dropped and created again, for functions that
// still exist.
func restoreRights(ctx context.Context, tx pgx.Tx, schema string, before []right) error {
	after, err := functionRights(ctx, tx, schema)
	if err != nil {
		return err
	}
	has := map[right]bool{}
	for _, r := range after {
		has[r] = true
	}
	for _, r := range before {
		if has[r] || r.grantee == "" { // a migration alone decides the rights of public
			continue
		}
		var there bool
		const look = `select exists (select from pg_proc where proname = $1 and pronamespace = $2::text::regnamespace)`
		if err := tx.QueryRow(ctx, look, r.function, pgx.Identifier{schema}.Sanitize()).Scan(&there); err != nil {
			return err
		}
		if !there {
			continue
		}
		grant := "grant execute on function " + pgx.Identifier{schema, r.function}.Sanitize() + " to " + pgx.Identifier{r.grantee}.Sanitize()
		if r.option {
			grant += " with grant option"
		}
		if _, err := tx.Exec(ctx, grant); err != nil {
			return err
		}
	}
	return nil
}
