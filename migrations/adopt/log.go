package adopt

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// logTimeout ends the reading of a slot, which Cutover does a second time while producers wait. rowTimeout is added to the
// limit of a step for each row that it moves.
var (
	logTimeout = shadowTimeout
	rowTimeout = 5 * time.Millisecond
)

// What to do after a step of a table that Debezium reads.
const (
	nextShadowLog = "Look for refused rows for a while: dispatcher adopt status. Then stop the connector, and run dispatcher adopt cutover; or dispatcher adopt back, to remove the shadow."
	nextLiveLog   = "Leave the connector stopped, run a dispatcher for the namespace, and watch dispatcher adopt status; dispatcher adopt back gives to the connector what is not delivered. The slot keeps WAL until then."
	nextNoSlotLog = "Run a dispatcher for the namespace, and watch dispatcher adopt status; nothing can go back to the connector. When producers call enqueue and none of ours waits, drop the table, and end the adoption: dispatcher adopt back."
	nextStopLog   = "Stop the connector: it sends what the outbox has taken over."
	nextBackLog   = "The connector sends what its slot holds: remove its stored offset, and start it with snapshot.mode no_data."
)

// remedied is an error of a statement for which the step knows more than [remedy].
type remedied struct {
	err    error
	remedy string
}

func (e remedied) Error() string { return e.err.Error() }
func (e remedied) Unwrap() error { return e.err }

// withSlotRemedy adds what to do about an error of a statement that reads the slot.
func (r *run) withSlotRemedy(err error) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return err
	}
	remedy := map[string]string{
		"42501": "let the login read replication slots: alter role " + quote(r.tx.Conn().Config().User) + " replication",
		"55006": "stop the connector, and run it again",
		"57014": fmt.Sprintf("it took longer than %s: start the connector until it has caught up, stop it, and run it again", logTimeout),
		"55000": "what the slot holds cannot be read any more, so it is not known what was sent: go back (dispatcher adopt back), make the slot again, and have the connector send what is missing",
	}[pg.Code]
	if pg.Code == "55000" && r.state == Live { // all of it is the outbox's
		remedy = fmt.Sprintf("make the slot again: select pg_drop_replication_slot('%[1]s'); select pg_create_logical_replication_slot('%[1]s', 'pgoutput')", r.spec.Slot)
	}
	if remedy == "" {
		return err
	}
	return remedied{fmt.Errorf("slot %s: %w", r.spec.Slot, err), remedy}
}

// findSlot reads the slot; nil is none of that name.
func (r *run) findSlot() (*Slot, error) {
	s := Slot{Name: r.spec.Slot}
	var plugin string
	var here bool
	const look = `select coalesce(plugin, 'none'), coalesce(database = current_database(), false), active,
		coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn), 0)::bigint
		from pg_replication_slots where slot_name = $1`
	err := r.tx.QueryRow(r.ctx, look, r.spec.Slot).Scan(&plugin, &here, &s.Active, &s.Behind)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, nil
	case err != nil:
		return nil, err
	case plugin == "none":
		return nil, fmt.Errorf("slot %s is a physical one; give the slot.name of the connector (--slot)", r.spec.Slot)
	case !here:
		return nil, fmt.Errorf("slot %s is of another database; give the slot.name of the connector that reads this one (--slot)", r.spec.Slot)
	case plugin != "pgoutput":
		return nil, fmt.Errorf("slot %s has the plugin %s, and an adoption reads pgoutput; give the connector plugin.name pgoutput and a slot.name of its own", r.spec.Slot, plugin)
	}
	return &s, nil
}

// checkSlot checks what Cutover needs of the connector's slot and publication.
func (r *run) checkSlot() error {
	s, err := r.findSlot()
	if err != nil {
		return err
	}
	if s == nil {
		return r.noSlot()
	}
	var published bool
	const look = `select exists (
		select from pg_publication as p cross join lateral pg_get_publication_tables(p.pubname) as t
		where p.pubname = $1 and p.pubinsert and t.relid in (
			select $2::text::regclass union all select relid from pg_partition_tree($2::text::regclass)))`
	if err := r.tx.QueryRow(r.ctx, look, r.spec.Publication, r.their.name()).Scan(&published); err != nil {
		return err
	}
	if !published {
		return fmt.Errorf("publication %s does not publish what is inserted into table %s; give the publication.name of the connector (--publication)", r.spec.Publication, r.spec.Table)
	}
	return nil
}

// tryToRead checks whether the login may read the slot. For that moment no connector can.
func (r *run) tryToRead() error {
	err := pgx.BeginFunc(r.ctx, r.tx, func(tx pgx.Tx) error {
		_, err := tx.Exec(r.ctx, `select from pg_logical_slot_peek_binary_changes($1, '0/1', 1, 'proto_version', '1', 'publication_names', quote_ident($2))`,
			pgx.QueryExecModeSimpleProtocol, r.spec.Slot, r.spec.Publication)
		return err
	})
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "55006" {
		return nil // it may, when the connector is stopped
	}
	return r.withSlotRemedy(err)
}

// noSlot says why there may be none.
func (r *run) noSlot() error {
	var level string
	if err := r.tx.QueryRow(r.ctx, `select current_setting('wal_level')`).Scan(&level); err != nil {
		return err
	}
	if level != "logical" {
		return fmt.Errorf("there is no replication slot %s, and with wal_level %s the server cannot have one; log in to the server that the connector reads", r.spec.Slot, level)
	}
	return fmt.Errorf("there is no replication slot %s; give the slot.name of the connector (--slot), and let it keep the slot when it stops (slot.drop.on.stop false)", r.spec.Slot)
}

// cutoverLog is Cutover of a table that Debezium reads. It moves what the connector has not confirmed, which the slot has
// by transactions. Positions would not: a row that was inserted before the confirmed position may be of a transaction
// that has committed after it.
func (r *run) cutoverLog() error {
	r.result.State, r.result.Next = Live, nextLiveLog
	if r.state == Live { // what was refused is tried again, as it is in their table by now
		kept := fmt.Sprintf("select coalesce((select row_to_json(t) from %s as t where t.%s = a.their_id::%s), a.their_row) from outbox_adopted as a where adoption = %s and not live and their_row is not null order by seq",
			r.their.name(), quote(r.layout.id), r.their.types[r.layout.id], literal(r.spec.Name))
		return r.refusingNoMore(func() error { return r.exec(r.moveRows(kept)) })
	}
	unsent := fmt.Sprintf("outbox_adopt_log(%s, %s, %s)", literal(r.spec.Slot), literal(r.spec.Publication), literal(r.their.name()))
	if err := r.countUnsent(unsent); err != nil {
		return err
	}
	if err := r.lock("exclusive"); err != nil {
		return err
	}
	if err := r.flush(); err != nil {
		return err
	}
	r.result.Changed = true
	return r.refusingNoMore(func() error {
		for _, sql := range []string{
			"delete from outbox_adopted where adoption = " + literal(r.spec.Name),
			r.moveRows("select * from " + unsent),
			r.function(true),
			"update outbox_adoptions set state = 'Live', cutover_at = clock_timestamp() where name = " + literal(r.spec.Name),
		} {
			if err := r.exec(sql); err != nil {
				return r.withSlotRemedy(err)
			}
		}
		return nil
	})
}

// moveRows makes events of rows that a query gives as JSON.
func (r *run) moveRows(query string) string {
	return r.move("select v ->> "+literal(r.layout.id)+", v from ("+query+") as l (v)", keepEvent)
}

// countUnsent reads the slot before producers wait: they will wait for as long once more, and while the rows are moved.
func (r *run) countUnsent(unsent string) error {
	if err := r.checkSlot(); err != nil {
		return err
	}
	if err := r.flush(); err != nil {
		return err
	}
	if err := r.limit(logTimeout); err != nil {
		return err
	}
	if err := r.tx.QueryRow(r.ctx, `select count(*) from `+unsent).Scan(&r.result.Moved); err != nil {
		return r.withSlotRemedy(err)
	}
	if r.result.Moved > int64(r.options.MaxRows) {
		return fmt.Errorf("slot %s holds more than %d rows of %s that are not confirmed, and producers would wait while they are moved; start the connector until it has caught up, stop it, and run it again, or raise the limit (--max-rows)", r.spec.Slot, r.options.MaxRows, r.spec.Table)
	}
	return r.limit(logTimeout + time.Duration(r.result.Moved)*rowTimeout)
}

// limit ends the statements that take longer.
func (r *run) limit(timeout time.Duration) error {
	_, err := r.tx.Exec(r.ctx, fmt.Sprintf(`set local statement_timeout = %d`, timeout.Milliseconds()))
	return err
}

// flush brings to disk what is committed, because a slot is read as far as that. A commit with synchronous_commit off is
// not waited for by its own session. The commit of another session brings it there, and waits for no standby.
func (r *run) flush() (err error) {
	if r.options.DryRun {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(r.ctx, logTimeout, fmt.Errorf("a second connection took longer than %s", logTimeout))
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, r.tx.Conn().Config())
	if err != nil {
		return fmt.Errorf("make a second connection, which this step needs: %w; let the login have two", err)
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(r.ctx))) }()
	sql := fmt.Sprintf(`begin; set local synchronous_commit = local; update %s set slot = slot where name = %s; commit`,
		pgx.Identifier{r.schema, "outbox_adoptions"}.Sanitize(), literal(r.spec.Name))
	_, err = conn.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol)
	return err
}

// passSlot moves the slot to the end of what is committed, when Back begins: all of that is the outbox's. What is inserted
// from then on is the connector's.
func (r *run) passSlot() error {
	if !r.layout.log || r.state != Live {
		return nil
	}
	switch s, err := r.findSlot(); {
	case err != nil:
		return err
	case s == nil:
		return fmt.Errorf("there is no replication slot %[1]s any more, and the connector would miss what goes back; make it: select pg_create_logical_replication_slot('%[1]s', 'pgoutput')", r.spec.Slot)
	}
	if err := r.flush(); err != nil {
		return err
	}
	return r.withSlotRemedy(r.exec(fmt.Sprintf("select pg_replication_slot_advance(%s, pg_current_wal_flush_lsn())", literal(r.spec.Slot))))
}

// checkSlot checks slot and publication of a spec.
func (s Spec) checkSlot(l layout) error {
	switch {
	case !l.log && s.Slot+s.Publication != "":
		return fmt.Errorf("the layout %s has no replication slot; leave out slot and publication, or choose the layout debezium", s.Layout)
	case s.Slot != "" && !slots.MatchString(s.Slot):
		return fmt.Errorf("the slot %.70q cannot be used; give the slot.name of the connector: 1 to 63 lower case characters, digits and underscores", s.Slot)
	case s.Publication != "" && !word.MatchString(s.Publication):
		return fmt.Errorf("the publication %.70q cannot be used; give the publication.name of the connector", s.Publication)
	}
	return nil
}
