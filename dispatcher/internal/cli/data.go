package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/database"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/journal"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
)

// The limits of check --data, which are those of the alerts.
const (
	maxLag         = 5 * time.Minute
	minSuccessRate = 0.9
)

// dataReport is the report of check --data.
type dataReport struct {
	Dispatcher string      `json:"dispatcher"`
	Namespace  string      `json:"namespace"`
	Topics     []string    `json:"topics,omitempty"`
	ObservedAt time.Time   `json:"observedAt"`
	OK         bool        `json:"ok"`
	Checks     []dataCheck `json:"checks"`
}

// dataCheck is the result of one check.
type dataCheck struct {
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	// Value is the number that the check is about: seconds, rows, or a part from 0 to 1. Absent when there is nothing
	// to count. AtLeast says that there may be more.
	Value   *float64 `json:"value,omitempty"`
	AtLeast bool     `json:"atLeast,omitempty"`
	Message string   `json:"message"`
	// Remedy says what to do. Empty when OK.
	Remedy string `json:"remedy,omitempty"`
}

func checkData(cmd *cobra.Command, file source, output string) error {
	write, err := reportWriter(output, dataTable)
	if err != nil {
		return err
	}
	cfg, err := load(file, true)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), checkTimeout)
	defer cancel()
	report, err := readData(ctx, cfg)
	if err != nil {
		return err
	}
	if err := write(cmd.OutOrStdout(), report); err != nil {
		return err
	}
	if !report.OK {
		return differs{fmt.Errorf("%d of %d checks of the data failed", report.failed(), len(report.Checks))}
	}
	return nil
}

// readyStore opens the store of a schema that this version can use. The caller closes the pool.
func readyStore(ctx context.Context, cfg spec.Config) (*pgxpool.Pool, *pgstore.Store, error) {
	pool, err := database.Pool(ctx, cfg.Database, cfg.Name)
	if err != nil {
		return nil, nil, refused{err}
	}
	store := pgstore.New(pool, storeOptions(cfg, uuid.Nil))
	schema, err := store.Schema(ctx)
	if err != nil {
		err = sentence(err)
	} else if schema.State != dispatcher.SchemaReady {
		err = errors.New(schema.Message)
	}
	if err != nil {
		pool.Close()
	}
	return pool, store, err
}

// readData reads the database and makes the checks.
func readData(ctx context.Context, cfg spec.Config) (*dataReport, error) {
	pool, store, err := readyStore(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	depth, err := store.Depth(ctx, cfg.Topics)
	if err != nil {
		return nil, sentence(err)
	}
	data, err := store.Data(ctx, pgstore.WorkerInfo{Dispatcher: cfg.Name, Topics: cfg.Topics})
	if err != nil {
		return nil, sentence(err)
	}
	var bytes, rows int64
	const look = `select pg_total_relation_size(oid), reltuples::bigint from pg_class where relname = 'outbox_events' and relnamespace = (select oid from pg_namespace where nspname = $1)`
	if err := pool.QueryRow(ctx, look, cfg.Database.Schema).Scan(&bytes, &rows); err != nil {
		return nil, sentence(err)
	}
	odd, n, err := store.OddTimes(ctx, cfg.Topics)
	if err != nil {
		return nil, sentence(err)
	}
	state, err := journal.NewWatch(pool, journal.Options{Schema: cfg.Database.Schema, Namespace: cfg.Namespace, Topics: cfg.Topics}).Look(ctx)
	if err != nil {
		return nil, sentence(err)
	}
	refused, err := store.RefusedRows(ctx, cfg.Topics)
	return judge(cfg, depth, data, kept(cfg, bytes, rows, data.Windows[1]), oddTimes(odd, n), recorded(state), claims(refused, err)), nil
}

// claims is about the first event of each topic that is due, which a claim would take next. A login that may not lease them, as
// that of a person or a standby, says nothing of the dispatcher's.
func claims(refused []*dispatcher.RefusedRow, err error) dataCheck {
	c := dataCheck{Name: "claims", OK: err == nil && len(refused) == 0, Value: new(float64(len(refused))), Message: fmt.Sprintf("topics whose first due event the database refuses to lease: %d", len(refused)),
		Remedy: "Fix what refuses it: a trigger, a check or a damaged value. The dispatcher tries it again within five minutes (ClaimsRefused)."}
	if err != nil {
		c.Value, c.Message, c.Remedy = nil, "the first events that are due could not be tried: "+sentence(err).Error(), "Run it with the dispatcher's login, on the primary."
	}
	const named = 5
	for _, row := range refused[:min(len(refused), named)] {
		c.Message += "; " + row.Error()
	}
	return c
}

// judge makes the checks, and adds others.
func judge(cfg spec.Config, depth dispatcher.Depth, data dispatcher.Data, others ...dataCheck) *dataReport {
	r := &dataReport{Dispatcher: cfg.Name, Namespace: cfg.Namespace, Topics: cfg.Topics, ObservedAt: data.ObservedAt.UTC(), OK: true}
	r.Checks = []dataCheck{lag(depth), retrying(depth), success(data.Windows[0]), recentlyDead(data.Windows[1]), unservedRows(cfg.Namespace, data.Orphans), abandonedRows(cfg.Namespace, data.Orphans), adoptedRows(data.Adoptions)}
	r.Checks = append(r.Checks, others...)
	for i, c := range r.Checks {
		if c.OK {
			r.Checks[i].Remedy = ""
		}
	}
	r.OK = r.failed() == 0
	return r
}

func (r *dataReport) failed() (n int) {
	for _, c := range r.Checks {
		if !c.OK {
			n++
		}
	}
	return n
}

// lag counts from when an event was due first: one that its producer delayed has not waited before.
func lag(depth dispatcher.Depth) dataCheck {
	var first dispatcher.TopicDepth
	for _, t := range depth.Topics {
		if !t.OldestPending.IsZero() && (first.OldestPending.IsZero() || t.OldestPending.Before(first.OldestPending)) {
			first = t
		}
	}
	if first.OldestPending.IsZero() {
		return dataCheck{Name: "lag", OK: true, Value: new(0.0), Message: "no event waits"}
	}
	wait := depth.ObservedAt.Sub(first.OldestPending)
	return dataCheck{Name: "lag", OK: wait <= maxLag, Value: new(wait.Seconds()),
		Message: fmt.Sprintf("an event of topic %q has waited for %s", first.Topic, wait.Round(time.Second)),
		Remedy:  "See whether a dispatcher runs, is not paused, and reaches its destination: its /status, or kubectl outbox status."}
}

// retrying has no limit: how many retries are too many depends on the destination.
func retrying(depth dispatcher.Depth) dataCheck {
	var retrying, pending dispatcher.Count
	for _, t := range depth.Topics {
		retrying.N, pending.N = retrying.N+t.Retrying.N, pending.N+t.Pending.N
		retrying.Estimated = retrying.Estimated || t.Retrying.Estimated
	}
	return dataCheck{Name: "retries", OK: true, Value: new(float64(retrying.N)),
		Message: fmt.Sprintf("waiting for a retry after a failure: %s, of %d that wait", number(retrying, "about "), pending.N)}
}

func success(of dispatcher.Outcomes) dataCheck {
	rate, known := of.SuccessRate()
	if !known {
		return dataCheck{Name: "success", OK: true, Message: fmt.Sprintf("no process of the dispatcher that runs has tried a delivery in the last %s", of.Name())}
	}
	return dataCheck{Name: "success", OK: rate >= minSuccessRate, Value: &rate,
		Message: fmt.Sprintf("%d of %d attempts delivered their event in the last %s", of.Delivered, of.Delivered+of.Failed, of.Name()),
		Remedy:  "See why deliveries fail: lastError in a dispatcher's /status, or the column last_error of outbox_events."}
}

func recentlyDead(of dispatcher.Outcomes) dataCheck {
	return dataCheck{Name: "dead", OK: of.Dead.N == 0, Value: new(float64(of.Dead.N)), AtLeast: of.Dead.Estimated,
		Message: fmt.Sprintf("became dead in the last %s: %s", of.Name(), number(of.Dead, "at least ")),
		Remedy:  "See why with dispatcher dead groups, fix it, and replay or discard them."}
}

func unservedRows(namespace string, o dispatcher.Orphans) dataCheck {
	return orphans("unserved", namespace, o.Unserved, o.Topics, "due in topics that no dispatcher serves", func(t dispatcher.OrphanTopic) int64 { return t.Unserved.N },
		"Run a dispatcher for the namespace and topic, or correct what their producer gives enqueue, and move what is there: dispatcher unserved.")
}

func abandonedRows(namespace string, o dispatcher.Orphans) dataCheck {
	return orphans("abandoned", namespace, o.Abandoned, o.Topics, "leased to workers that have ended, and not taken over", func(t dispatcher.OrphanTopic) int64 { return t.Abandoned.N },
		"Start or resume a dispatcher of the topic, and see whether it is held back: its /status.")
}

// adoptedRows reports rows of adopted tables that no dispatcher delivers.
func adoptedRows(all []dispatcher.AdoptionRows) dataCheck {
	c := dataCheck{Name: "adoptions", OK: true, Message: "rows of adopted tables without an event", Remedy: "See which and why with dispatcher adopt status, and correct them; until then their worker has to run."}
	var n int64
	for _, rows := range all {
		if rows.N != 0 {
			c.OK, n = false, n+max(rows.N, 0)
			c.Message += fmt.Sprintf("; of %s %d %s", rows.Adoption, rows.N, rows.State)
		}
	}
	c.Value = new(float64(n))
	return c
}

// orphans reports rows that no worker delivers, and names some of their topics. Those of other namespaces do not fail
// the check of this dispatcher.
func orphans(name, namespace string, n dispatcher.Count, topics []dispatcher.OrphanTopic, what string, of func(dispatcher.OrphanTopic) int64, remedy string) dataCheck {
	const named = 5
	var which []string
	var own int64
	for _, t := range topics {
		if t.Namespace == namespace {
			own += of(t)
		}
		if of(t) > 0 && len(which) < named {
			which = append(which, fmt.Sprintf("%q of namespace %q", t.Topic, t.Namespace))
		}
	}
	message := what + ": " + number(n, "at least ")
	if len(which) > 0 {
		message += ", of topic " + strings.Join(which, ", ")
	}
	return dataCheck{Name: name, OK: own == 0, Value: new(float64(n.N)), AtLeast: n.Estimated, Message: message, Remedy: remedy}
}

// kept has no limit: how large a table may be depends on the disk. rows is the server's estimate, below 1 for none yet.
func kept(cfg spec.Config, bytes, rows int64, of dispatcher.Outcomes) dataCheck {
	const gb = 1e9
	c := dataCheck{Name: "size", OK: true, Value: new(float64(bytes)), Message: fmt.Sprintf("the table of events and its indexes take %.2f GB", float64(bytes)/gb)}
	if rows < 1 {
		return c
	}
	each, rate := float64(bytes)/float64(rows), float64(of.Delivered)/of.Window.Seconds()
	c.Message += fmt.Sprintf(", %.0f bytes an event", each)
	if keep := cfg.Retention.Delivered.D(); rate > 0 && keep > 0 {
		c.Message += fmt.Sprintf("; at the %.3g events/s of the last %s, retention.delivered of %s keeps %.3g GB", rate, of.Name(), cfg.Retention.Delivered, rate*keep.Seconds()*each/gb)
	}
	return c
}

// oddTimes names events that a clock which was ahead, or an adoption, made wait or come out of turn.
func oddTimes(odd []pgstore.OddTime, n int64) dataCheck {
	message := fmt.Sprintf("times that cannot be right: %d", n)
	for _, o := range odd {
		message += fmt.Sprintf("; event %s of topic %q is %s: %s", o.ID, o.Topic, o.What, o.Due)
	}
	return dataCheck{Name: "times", OK: n == 0, Value: new(float64(n)), Message: message,
		Remedy: "See whether the database's clock was ahead. To deliver a pending event now: update outbox_events set next_attempt_at = now() where id = '...' and status = 'pending'."}
}

// recorded is about the events that changed last.
func recorded(s journal.State) dataCheck {
	if !s.On {
		return dataCheck{Name: "journal", OK: true, Message: "the journal is off"}
	}
	return dataCheck{Name: "journal", OK: s.Found == 0, Value: new(float64(s.Found)),
		Message: fmt.Sprintf("differences between the rows and %d records of the journal, of events that changed in the last %.0fh: %d", s.Records, journal.WatchSince.Hours(), s.Found),
		Remedy:  "Run dispatcher verify, which names each, and what it means."}
}

// number is a count, and whether it is sure.
func number(n dispatcher.Count, unsure string) string {
	if !n.Estimated {
		unsure = ""
	}
	return fmt.Sprintf("%s%d", unsure, n.N)
}

// dataTable is a report for people.
func dataTable(w io.Writer, r *dataReport) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, c := range r.Checks {
		state := "ok"
		if !c.OK {
			state = "FAIL"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\n", state, c.Name, oneLine(c.Message))
		if c.Remedy != "" {
			fmt.Fprintf(table, "\t\t  %s\n", c.Remedy)
		}
	}
	return table.Flush()
}
