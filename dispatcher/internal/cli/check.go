package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/database"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink"
)

// checkTimeout bounds each of the checks.
const checkTimeout = 15 * time.Second

func checkCommand() *cobra.Command {
	var file source
	var own ownSettings
	var output string
	var data bool
	cmd := &cobra.Command{
		Use: "check -f FILE [--data]", Short: "Try everything that run needs, and say what is wrong", Args: cobra.NoArgs,
		Long: `Check the file, the database, its schema, the login's rights, with wakeUp Listen whether wake-ups are received, and
the destination: each topic, stream, queue or table that the sink, topics or routes of the file name; with notify,
also the address that is notified of dead letters. Nothing is changed, and no event is sent. Each check is a line
that starts with "ok" or "FAIL"; "WARN" does not fail the command.

With --data, check the outbox's rows instead: for how long an event has waited, how many wait for a retry, how
deliveries ended in the last 5 minutes, what became dead in the last hour, rows that no worker delivers, rows that the
database refuses to lease (it leases the first one of each topic, and takes that back), rows that differ from the
journal, and what the table takes on disk, with what retention will keep at the rate of the last hour. It reads by
indexes alone, so it is cheap at any backlog. Exit codes: 0 when all checks succeed, 3 when one fails, 78 when the
configuration is refused, 1 for any other failure.`,
		Example: `  dispatcher check -f dispatcher.yaml
  dispatcher check -f dispatcher.yaml --data --output json`,
		RunE: work(func(cmd *cobra.Command) error {
			switch {
			case data:
				return checkData(cmd, file, output)
			case cmd.Flags().Changed("output"):
				return errors.New("--output is for --data; add it, or leave out --output")
			}
			c := &checks{out: cmd.OutOrStdout()}
			c.all(cmd.Context(), file, own)
			if c.failed == 0 {
				return nil
			}
			err := fmt.Errorf("%d of %d checks failed", c.failed, c.done)
			if c.refused {
				return refused{err}
			}
			return err
		}),
	}
	fileFlag(cmd, &file)
	own.flags(cmd)
	cmd.Flags().BoolVar(&data, "data", false, "look at the outbox's rows, not at what run needs")
	cmd.Flags().StringVarP(&output, "output", "o", "table", "with --data: table, json or yaml")
	return cmd
}

type checks struct {
	out          io.Writer
	done, failed int
	refused      bool // the configuration
}

// report writes a line: the error with its cause and remedy, or the detail of a success.
func (c *checks) report(name, detail string, err error) bool {
	c.done++
	if err != nil {
		c.failed++
		c.refused = c.refused || name == "config"
		fmt.Fprintf(c.out, "FAIL %s: %s\n", name, brief(err))
		return false
	}
	fmt.Fprintf(c.out, "ok   %s: %s\n", name, detail)
	return true
}

func (c *checks) all(ctx context.Context, file source, own ownSettings) {
	cfg, err := load(file, true)
	if err != nil {
		for _, problem := range splitErrors(err) {
			c.report("config", "", problem)
		}
		return
	}
	own.set(&cfg)
	_, invalid := sink.Pipeline(cfg)
	for _, problem := range splitErrors(invalid) {
		c.report("config", "", problem)
	}
	if invalid == nil {
		c.report("config", file.file+" is valid", nil)
	}
	if cfg.StateFile != "" {
		state, err := readState(cfg.StateFile)
		c.report("state", string(state), err)
	}
	if cfg.VerifiedTypesFile != "" {
		types, err := readTypes(cfg.VerifiedTypesFile)
		c.report("verified types", fmt.Sprintf("%d are listed", len(types)), err)
	}
	c.database(ctx, cfg)
	if invalid == nil {
		c.pipeline(ctx, cfg)
		if c.sink(ctx, cfg) {
			c.places(ctx, cfg)
		}
	}
	if invalid == nil {
		c.address(ctx, cfg)
	}
}

// splitErrors splits errors that errors.Join joined.
func splitErrors(err error) []error {
	var joined interface{ Unwrap() []error }
	switch {
	case err == nil:
		return nil
	case errors.As(err, &joined):
		return joined.Unwrap()
	}
	return []error{err}
}

func (c *checks) database(ctx context.Context, cfg spec.Config) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	pool, err := database.Pool(ctx, cfg.Database, cfg.Name)
	if err != nil {
		c.report("database", "", err)
		return
	}
	defer pool.Close()
	where, user, err := login(ctx, pool)
	if !c.report("database", where, sentence(err)) {
		return
	}
	if level, err := database.Isolation(ctx, pool); err != nil { // it works, with more tries
		fmt.Fprintf(c.out, "WARN isolation: %s\n", err)
	} else {
		fmt.Fprintf(c.out, "ok   isolation: %s\n", level)
	}
	schema, err := pgstore.New(pool, pgstore.Options{Schema: cfg.Database.Schema, Namespace: cfg.Namespace}).Schema(ctx)
	if err == nil && schema.State != dispatcher.SchemaReady {
		c.report("schema", "", fmt.Errorf("%s: %s", schema.State, schema.Message))
		if schema.State == dispatcher.SchemaMissing {
			return
		}
	} else {
		c.report("schema", fmt.Sprintf("%s has version %d", cfg.Database.Schema, schema.Version), sentence(err))
	}
	missing, err := missingRights(ctx, pool, cfg)
	err = sentence(err)
	if len(missing) > 0 {
		err = fmt.Errorf("%s lacks %s; have the owner run `dispatcher migrate grants -f OWNER-FILE --role %s --apply`", user, strings.Join(missing, ", "), user)
	}
	c.report("grants", user+" has every right that a dispatcher uses", err)
	if cfg.Delivery.WakeUp == spec.WakeUpListen {
		c.report("wake-up", "wake-ups of producers are received", pgstore.TryListen(ctx, connector(cfg), cfg.Database.Schema))
	}
}

// login says where a connection of the pool leads, and as whom.
func login(ctx context.Context, pool *pgxpool.Pool) (where, user string, err error) {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return "", "", err
	}
	defer conn.Release()
	err = conn.QueryRow(ctx, `select format('%s as %s, PostgreSQL %s', current_database(), current_user, current_setting('server_version')), current_user`).Scan(&where, &user)
	return fmt.Sprintf("%s, at %s", where, conn.Conn().PgConn().Conn().RemoteAddr()), user, err
}

// sentence is an error of the database in one sentence, with the remedy.
func sentence(err error) error {
	if err == nil {
		return nil
	}
	_, message := database.Classify(err)
	return errors.New(message)
}

// missingRights compares the login's rights with what the dispatcher uses of those that
// migrations.Grants gives one.
func missingRights(ctx context.Context, pool *pgxpool.Pool, cfg spec.Config) (missing []string, err error) {
	err = pool.QueryRow(ctx, `
		select array(
			select 'usage on schema ' || nspname from pg_namespace where nspname = $1 and not has_schema_privilege(oid, 'usage')
			union all
			select right_ || ' on ' || relname
			from (values ('outbox_events', 'select'), ('outbox_events', 'update'), ('outbox_events', 'delete'),
				('outbox_dead_letters', 'select'), ('outbox_dead_letters', 'insert'), ('outbox_dead_letters', 'delete'), ('outbox_migrations', 'select'),
				('outbox_sweeps', 'select'), ('outbox_sweeps', 'insert'), ('outbox_sweeps', 'update'),
				('outbox_fence', 'select'), ('outbox_journal', 'select'), ('outbox_journal_settings', 'select'), ('outbox_replays', 'select'),
				('outbox_rates', 'select'), ('outbox_rates', 'insert'), ('outbox_rates', 'update'), ('outbox_rates', 'delete'),
				('outbox_workers', 'select'), ('outbox_workers', 'insert'), ('outbox_workers', 'update'), ('outbox_workers', 'delete')) as needed (table_, right_)
			join pg_class on relname = table_ and relnamespace = (select oid from pg_namespace where nspname = $1)
			where not has_table_privilege(pg_class.oid, right_)
			union all
			select 'update (' || string_agg(attname, ', ' order by attnum) || ') on ' || relname from pg_class join pg_attribute on attrelid = pg_class.oid
			where relname = 'outbox_dead_letters' and relnamespace = (select oid from pg_namespace where nspname = $1)
				and attname in ('resolution', 'resolved_at', 'resolved_by', 'notify_at', 'notify_attempts', 'notified_at')
				and not has_column_privilege(pg_class.oid, attnum, 'update') group by relname
			union all
			select 'usage on ' || relname from pg_class
			where relname = 'outbox_leases' and relnamespace = (select oid from pg_namespace where nspname = $1)
				and not has_sequence_privilege(oid, 'usage')
			union all
			select 'execute on ' || proname from pg_proc
			where proname in ('outbox_journal_keep', 'outbox_journal_digest', 'outbox_fence_raise', 'outbox_fence_down', 'outbox_sequences_behind',
					'outbox_replay_sweep', 'outbox_replay_claims') and pronamespace = (select oid from pg_namespace where nspname = $1)
				and not has_function_privilege(oid, 'execute'))`,
		cfg.Database.Schema).Scan(&missing)
	return missing, err
}

// pipeline reports routes, validation and transform, which compile.
func (c *checks) pipeline(ctx context.Context, cfg spec.Config) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	p, err := sink.Pipeline(cfg)
	if err != nil {
		c.report("config", "", err)
		return
	}
	p.Check(ctx, func(name, detail string, err error) { c.report(name, detail, err) })
}

func (c *checks) sink(ctx context.Context, cfg spec.Config) (responds bool) {
	if !c.report("sink", "the destination responds", probe(ctx, cfg)) {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	c.limit(ctx, cfg)
	warnings, err := sink.Warnings(ctx, cfg)
	if err != nil {
		c.report("sink", "", err)
	}
	for _, warning := range warnings {
		fmt.Fprintf(c.out, "WARN sink: %s\n", warning)
	}
	return true
}

// probe probes the sink of a configuration, once.
func probe(ctx context.Context, cfg spec.Config) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	s, err := sink.New(cfg, io.Discard)
	if err != nil {
		return err
	}
	return errors.Join(s.Probe(ctx), s.Close(ctx))
}

// places reports the destinations that the topics and routes of the file name and that cannot be used.
func (c *checks) places(ctx context.Context, cfg spec.Config) {
	places, err := sink.Places(cfg)
	for _, problem := range splitErrors(err) {
		c.report("sink", "", problem)
	}
	var found []string
	for _, p := range places {
		if err := probe(ctx, p.Config); err != nil {
			c.report("sink", "", err)
		} else {
			found = append(found, p.Name)
		}
	}
	const listed = 10
	if len(found) > 0 {
		c.report("sink", fmt.Sprintf("%d of %d destinations of the file are there: %s", len(found), len(places), strings.Join(found[:min(len(found), listed)], ", ")), nil)
	}
}

// address reports whether the address of notify can be reached, if there is one. It is sent nothing.
func (c *checks) address(ctx context.Context, cfg spec.Config) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	to, err := address(cfg)
	if err == nil && to == nil {
		return
	}
	if err == nil {
		err = errors.Join(to.Probe(ctx), to.Close(ctx))
	}
	c.report("notify", "the address of notify can be reached", err)
}

// The default limits of enqueue (CONTRACT C-13, C-16).
const (
	maxPayload = 1 << 20
	maxHeaders = 64 << 10
)

// limit warns of a destination that takes smaller messages than enqueue.
func (c *checks) limit(ctx context.Context, cfg spec.Config) {
	bytes, setting := sink.Limit(ctx, cfg)
	if bytes == 0 || bytes >= maxPayload+maxHeaders {
		return
	}
	fmt.Fprintf(c.out, "WARN sink: it takes messages of %d bytes (%s), and enqueue takes payloads of %d with %d of headers; a larger event would be dead at once: raise the limit, or make no larger events\n",
		bytes, setting, maxPayload, maxHeaders)
}
