package adopt

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// readTimeout ends a count.
var readTimeout = 30 * time.Second

// Status is where an adoption stands. The counts are of one snapshot.
type Status struct {
	Name      string `json:"name"`
	Layout    Layout `json:"layout"`
	Table     string `json:"table"`
	Namespace string `json:"namespace"`
	// Topic is empty where each row has its own.
	Topic string `json:"topic,omitempty"`
	State State  `json:"state"`
	// Since is when the shadow began, and CutoverAt when the outbox took over.
	Since      time.Time  `json:"since"`
	CutoverAt  *time.Time `json:"cutoverAt,omitempty"`
	ObservedAt time.Time  `json:"observedAt"`
	// Rows are the rows that their table has of those inserted since the shadow began, and Notes those of them that have a note,
	// refused ones aside. A row whose id or time of creation is not after the greatest one at the start, or is null, is in
	// neither, and one that was deleted is in neither any more.
	Rows  int64 `json:"rows"`
	Notes int64 `json:"notes"`
	// Missing are their rows without a note.
	Missing int64 `json:"missing"`
	// Refused are the rows that the outbox does not take, and Refusals the first ten of them.
	Refused  int64     `json:"refused"`
	Refusals []Refusal `json:"refusals,omitempty"`
	// OpenRows are the open rows of their table, and OpenEvents the events of the adoption that are not yet delivered.
	OpenRows   int64 `json:"openRows"`
	OpenEvents int64 `json:"openEvents"`
	// Values of the status column, where there is one: at most 20, those that the mapping does not know first.
	Values []Value `json:"values,omitempty"`
	// Warnings are what may not be meant as it is, each a sentence.
	Warnings []string `json:"warnings,omitempty"`
	// Slot of the layout Debezium, of which no rows are counted: its table says nothing of what was sent.
	Slot *Slot `json:"slot,omitempty"`
	// Next says what to do next, in a sentence.
	Next string `json:"next"`
}

// Slot is a connector's replication slot.
type Slot struct {
	Name string `json:"name"`
	// Missing: there is none of that name.
	Missing bool `json:"missing,omitempty"`
	// Active: the connector reads it.
	Active bool `json:"active"`
	// Behind is how many bytes of WAL it has not confirmed.
	Behind int64 `json:"behind"`
}

// Refusal is a row that the outbox does not take.
type Refusal struct {
	// ID is theirs.
	ID     string `json:"id"`
	Reason string `json:"reason"`
}

// OK reports whether each row of theirs has a note, none is refused, each says whether it is to be sent, and after the cut-over none waits.
func (s Status) OK() bool {
	return s.Missing == 0 && s.Refused == 0 && s.Unknown() == 0 && (s.State != Live || s.OpenRows == 0)
}

// Unknown is the number of rows of which the mapping does not say whether they are to be sent.
func (s Status) Unknown() (rows int64) {
	for _, v := range s.Values {
		if v.Means == MeansUnknown {
			rows += v.Rows
		}
	}
	return rows
}

// Read counts the adoption of a name, or all with "". There may be none. It only reads, with the rights of [Apply], and
// its work depends on the rows since the shadow began; it gives up after 30 seconds. It fails when the database does.
func Read(ctx context.Context, conn *pgx.Conn, schema, name string) (all []Status, err error) {
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, fmt.Sprintf(`set local statement_timeout = %d`, readTimeout.Milliseconds())); err != nil {
			return err
		}
		all, err = read(ctx, tx, schema, name)
		return err
	})
	var pg *pgconn.PgError
	switch {
	case errors.As(err, &pg) && pg.Code == "57014":
		return nil, fmt.Errorf("adopt status: %w; to count took longer than %s: create an index (concurrently) on the column that says when a row was created", err, readTimeout)
	case err != nil:
		return nil, fmt.Errorf("adopt status: %w%s", err, remedy(err, ""))
	}
	return all, nil
}

func read(ctx context.Context, tx pgx.Tx, schema, name string) ([]Status, error) {
	if _, err := tx.Exec(ctx, `select set_config('search_path', $1::text, true)`, quote(schema)+", pg_temp"); err != nil {
		return nil, err
	}
	found, err := readAll(ctx, tx, name)
	if err != nil {
		return nil, err
	}
	all := []Status{}
	for _, a := range found {
		r := run{ctx: ctx, tx: tx, schema: schema, spec: a.spec, adoption: a.adoption}
		status, err := r.status()
		if err != nil {
			return nil, fmt.Errorf("adoption %s: %w", a.spec.Name, err)
		}
		all = append(all, status)
	}
	return all, nil
}

func (r *run) status() (s Status, err error) {
	if r.layout, err = r.spec.layout(); err != nil {
		return s, err
	}
	if err = r.findTheir(""); errors.Is(err, errNoTable) {
		return s, fmt.Errorf("%w %s in this database; name it back if it was renamed, or end the adoption if it was dropped: dispatcher adopt back --name %s", errNoTable, r.spec.Table, r.spec.Name)
	} else if err != nil {
		return s, err
	}
	s = Status{
		Name: r.spec.Name, Layout: r.spec.Layout, Table: r.spec.Table, Namespace: r.spec.Namespace, Topic: r.spec.Topic, State: r.state,
		Since: r.since.UTC(), Next: map[State]string{Shadow: nextShadow, Live: nextLive, Returning: nextReturning}[r.state],
	}
	if r.cutAt != nil {
		at := r.cutAt.UTC()
		s.CutoverAt = &at
	}
	if r.layout.log {
		if s.Slot, err = r.findSlot(); err != nil {
			return s, err
		}
		if s.Slot == nil {
			s.Slot = &Slot{Name: r.spec.Slot, Missing: true}
		}
		switch {
		case s.State == Shadow:
			s.Next = nextShadowLog
		case s.State == Live && s.Slot.Missing:
			s.Next = nextNoSlotLog
		case s.State == Live && s.Slot.Active:
			s.Next = nextStopLog
		case s.State == Live:
			s.Next = nextLiveLog
		}
	}
	if s.Values, err = r.values(); err != nil {
		return s, err
	}
	if s.Warnings, err = r.warnings(); err != nil {
		return s, err
	}
	var refusals string
	err = r.tx.QueryRow(r.ctx, r.render("status", nil)).Scan(&s.Rows, &s.Notes, &s.Missing, &s.Refused, &s.OpenRows, &s.OpenEvents, &refusals, &s.ObservedAt)
	if err != nil {
		return s, err
	}
	s.ObservedAt = s.ObservedAt.UTC()
	return s, json.Unmarshal([]byte(refusals), &s.Refusals)
}
