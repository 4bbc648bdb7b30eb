package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

// backlog is rows that are in no claim's way, or should not be.
type backlog struct {
	name   string // as a case of the table
	values string // status, next_attempt_at and topic of the rows, in SQL
}

var backlogs = []backlog{
	{"not yet due", `'pending', now() + '1 day', '` + topic + `'`},
	{"delivered", `'delivered', now() - interval '1 day', '` + topic + `'`},
	{"pending in another topic", `'pending', now() - interval '1 day', 'another'`},
}

// fill adds n rows of a backlog, by the server over two connections, and makes the indexes after them:
// some µs of CPU a row. The ids rise with time, as those of producers do.
func (l backlog) fill(ctx context.Context, db *database, n int) error {
	indexes, err := queryOne[[]string](ctx, db.conn, `select array_agg(indexdef) from pg_indexes
		where schemaname = 'outbox' and tablename = 'outbox_events' and indexname <> 'outbox_events_pkey'`)
	if err != nil {
		return err
	}
	if err := db.exec(ctx, `do $$ declare i text; begin
			for i in select indexname from pg_indexes
				where schemaname = 'outbox' and tablename = 'outbox_events' and indexname <> 'outbox_events_pkey'
			loop execute format('drop index outbox.%I', i); end loop;
			alter table outbox.outbox_events drop constraint outbox_events_pkey;
		end $$`); err != nil {
		return err
	}
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error { return l.rows(groupCtx, db, 1, n/2) })
	group.Go(func() error { return l.rows(groupCtx, db, n/2+1, n) })
	if err := group.Wait(); err != nil {
		return err
	}
	for _, sql := range slices.Concat([]string{`alter table outbox.outbox_events add constraint outbox_events_pkey primary key (id)`},
		indexes, []string{`vacuum (analyze) outbox.outbox_events`, `checkpoint`}) {
		if err := db.exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}

// rows adds some of the rows, over a connection of its own.
func (l backlog) rows(ctx context.Context, db *database, from, to int) error {
	conn, err := pgx.Connect(ctx, db.dsn())
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, fmt.Sprintf(`insert into outbox.outbox_events (id, namespace, payload, status, next_attempt_at, topic)
		select (lpad(to_hex(1750000000000 + n / 10), 12, '0') || '7000' || '8' || substr(md5(n::text), 1, 15))::uuid,
			'%s', payload.text, %s
		from generate_series(%d, %d) as n, (select jsonb_build_object('text', repeat('x', 180)) as text) as payload`,
		namespace, l.values, from, to))
	return err
}

// nextTo drains events next to a backlog, by each of the systems in turn, all on our table.
func (b *bench) nextTo(ctx context.Context, l backlog, of load, systems []system) {
	c := thousands(int64(b.size.backlog)) + " " + l.name
	db, err := b.nextToSetup(ctx, l)
	if db != nil {
		defer db.drop()
	}
	for _, s := range systems {
		s.job.Topics = []string{topic} // a dispatcher of all topics would deliver the other one, too
		s.delivered = ""               // counting them takes longer than the drain; that they are handled must do
		s.left = fmt.Sprintf(`select exists (select from outbox.outbox_events
			where live and namespace = '%s' and topic = '%s' and next_attempt_at <= now())`, namespace, topic)
		b.measure(ctx, "backlog", s, c, func() (measure, error) {
			if err != nil {
				return nil, err
			}
			return b.drainIn(ctx, db, s, drainOf{load: of})
		})
	}
}

func (b *bench) nextToSetup(ctx context.Context, l backlog) (*database, error) {
	db, err := b.srv.database(ctx)
	if err != nil {
		return nil, err
	}
	if err := outboxSetup(ctx, db.dsn()); err != nil {
		return db, err
	}
	b.say("writing %s rows that are %s", thousands(int64(b.size.backlog)), l.name)
	return db, l.fill(ctx, db, b.size.backlog)
}
