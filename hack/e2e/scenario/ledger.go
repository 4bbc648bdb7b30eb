package scenario

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Ledger compares what the service committed with what the consumer got and what the outbox holds.
type Ledger struct {
	Committed, RolledBack, Resent int
	// Delivered counts committed events that arrived at least once; Dead those that were given up,
	// by reason.
	Delivered int
	Dead      map[string]int
	// Lost are committed events that neither arrived nor are dead. It must be empty.
	Lost []uuid.UUID
	// Ghosts are events that arrived and were never committed. It must be empty.
	Ghosts []uuid.UUID
	// Duplicates counts deliveries beyond an event's first; Unexplained are those of events that no
	// killed dispatcher held. It must be empty.
	Duplicates  int
	Unexplained []uuid.UUID
	// Held counts events that the killed dispatcher held; HeldAgain is how long after the kill the
	// last of them arrived.
	Held      int
	HeldAgain time.Duration
}

// Kill is what was known when a dispatcher was killed.
type Kill struct {
	// At is when, and Held are the events that it held then.
	At   time.Time
	Held map[uuid.UUID]bool
}

// Balance makes the ledger. It returns an error when a query fails.
func Balance(ctx context.Context, adminDSN string, p *Produced, deliveries []Delivery, kill *Kill) (*Ledger, error) {
	dead, err := deadRows(ctx, adminDSN)
	if err != nil {
		return nil, fmt.Errorf("read the dead rows: %w", err)
	}
	l := &Ledger{Committed: len(p.Committed), RolledBack: len(p.RolledBack), Resent: p.Resent, Dead: map[string]int{}}
	seen := map[uuid.UUID]int{}
	for _, d := range deliveries {
		seen[d.ID]++
		if seen[d.ID] == 1 && !p.Committed[d.ID] {
			l.Ghosts = append(l.Ghosts, d.ID)
		}
		if seen[d.ID] > 1 {
			l.Duplicates++
			if kill == nil || !kill.Held[d.ID] {
				l.Unexplained = append(l.Unexplained, d.ID)
			}
		}
		if kill != nil && kill.Held[d.ID] {
			l.HeldAgain = max(l.HeldAgain, d.At.Sub(kill.At))
		}
	}
	if kill != nil {
		l.Held = len(kill.Held)
	}
	for id := range p.Committed {
		switch reason, isDead := dead[id]; {
		case seen[id] > 0:
			l.Delivered++
		case isDead:
			l.Dead[reason]++
		default:
			l.Lost = append(l.Lost, id)
		}
	}
	return l, nil
}

func deadRows(ctx context.Context, dsn string) (map[uuid.UUID]string, error) {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	rows, err := conn.Query(ctx, "select id::text, dead_reason from outbox.outbox_events where status = 'dead'")
	if err != nil {
		return nil, err
	}
	dead := map[uuid.UUID]string{}
	var id, reason string
	_, err = pgx.ForEachRow(rows, []any{&id, &reason}, func() error {
		dead[uuid.MustParse(id)] = reason
		return nil
	})
	return dead, err
}

// DeadLetters is what the table outbox_dead_letters says, a line for each record.
// It returns an error when a query fails.
func DeadLetters(ctx context.Context, dsn string) (string, error) {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return "", err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var text string
	err = conn.QueryRow(ctx, `select coalesce(string_agg(format(E'event %s of topic %s: %s after %s attempts\n  %s\n',
		event_id, topic, reason, attempts, error), '' order by id), '') from outbox.outbox_dead_letters`).Scan(&text)
	return text, err
}

// Err returns an error that says what does not balance.
func (l *Ledger) Err() error {
	if len(l.Lost)+len(l.Ghosts)+len(l.Unexplained) == 0 {
		return nil
	}
	return fmt.Errorf("the ledger does not balance: %d lost, %d delivered without a commit, %d duplicates without a cause", len(l.Lost), len(l.Ghosts), len(l.Unexplained))
}

// Print writes the ledger for a person.
func (l *Ledger) Print(w io.Writer) {
	row := func(n int, what string) { fmt.Fprintf(w, "  %8d  %s\n", n, what) }
	row(l.Committed, "events committed by the service")
	row(l.RolledBack, "events rolled back with their order")
	row(l.Resent, "sent twice with the same dedupe key, and refused as \"already enqueued\"")
	fmt.Fprintln(w)
	row(l.Delivered, "of the committed ones delivered")
	for reason, n := range l.Dead {
		row(n, "dead: "+reason)
	}
	row(len(l.Lost), "lost")
	row(len(l.Ghosts), "delivered without a commit")
	if l.Held > 0 {
		fmt.Fprintln(w)
		row(l.Held, fmt.Sprintf("events were held by the killed dispatcher; the last of them arrived %.1f s after the kill", l.HeldAgain.Seconds()))
		row(l.Duplicates-len(l.Unexplained), "of them were delivered twice: the killed dispatcher had sent them and could not say so")
	}
	if len(l.Unexplained) > 0 {
		row(len(l.Unexplained), "delivered twice without a killed dispatcher")
	}
}
