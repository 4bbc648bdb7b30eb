package migrations

import (
	"context"

	"github.com/jackc/pgx/v5"
)

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
