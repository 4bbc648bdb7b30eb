package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/database"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/document"
	"github.com/outbox-operator/outbox-operator/migrations"
)

func migrateCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "migrate", Short: "Create, upgrade and grant the outbox schema"}
	cmd.AddCommand(migrateUpCommand(), migrateStatusCommand(), migrateGrantsCommand())
	return cmd
}

func migrateUpCommand() *cobra.Command {
	var file source
	var grantTo, m10, m10Publish, overview string
	var tenants bool
	cmd := &cobra.Command{
		Use: "up -f FILE [--grant-to-login-of FILE] [--m10 NAMESPACE/TOPIC]", Short: "Bring the schema to this binary's version", Args: cobra.NoArgs,
		Long: `Bring the schema to this binary's version, and create it when it is missing. The login needs the rights
of an owner. It may run twice, and at the same time as another process.

With journal in the file it also turns the journal on or off: see the page of dispatcher/internal/journal. With
--m10, or database.m10 in the file, it also installs what workers of the M10 outbox contract call, in the schema
m10_recovery. With --overview, or database.overview, it also makes the view outbox.events, for producers of the
Overview contract. With --tenants, or database.tenants Indexed, it also makes the index that fairness needs.`,
		Example: `  dispatcher migrate up -f owner.yaml
  dispatcher migrate up -f owner.yaml --m10 shop/m10`,
		RunE: work(func(cmd *cobra.Command) error {
			return withDatabase(cmd, file.owners(), func(ctx context.Context, conn *pgx.Conn, cfg spec.Config) error {
				schema := cfg.Database.Schema
				if err := up(ctx, conn, schema, cmd.OutOrStdout()); err != nil {
					return err
				}
				if err := setJournal(ctx, conn, cfg, cmd.OutOrStdout()); err != nil {
					return err
				}
				wanted := cfg.Database.M10
				if m10 != "" {
					namespace, topic, _ := strings.Cut(m10, "/")
					wanted = &spec.M10{Namespace: namespace, Topic: cmp.Or(topic, "m10"), Publish: spec.M10Publish(m10Publish)}
				}
				if err := upM10(ctx, conn, schema, wanted, cmd.OutOrStdout()); err != nil {
					return err
				}
				if tenants || cfg.Database.Tenants == spec.TenantsIndexed {
					if err := upTenants(ctx, conn, schema, cmd.OutOrStdout()); err != nil {
						return err
					}
				}
				if o := cfg.Database.Overview; o != nil {
					overview = cmp.Or(overview, o.Namespace)
				}
				if err := upOverview(ctx, conn, schema, overview, cmd.OutOrStdout()); err != nil || grantTo == "" {
					return err
				}
				return grantLogins(ctx, conn, schema, source{grantTo, document.Options{Secrets: file.Secrets}}, cmd.OutOrStdout())
			})
		}),
	}
	fileFlag(cmd, &file)
	cmd.Flags().StringVar(&grantTo, "grant-to-login-of", "", "also grant what a dispatcher needs to the login of this configuration file, and what replays need to its replayLogin")
	cmd.Flags().StringVar(&m10, "m10", "", "install the M10 functions for the events of this namespace and topic; the topic defaults to m10")
	cmd.Flags().StringVar(&m10Publish, "m10-publish", string(spec.M10Insert), "Insert, or Upsert to replace the payload of an event that waits; for --m10")
	cmd.Flags().BoolVar(&tenants, "tenants", false, "make the index that delivery.fairness Tenant needs")
	cmd.Flags().StringVar(&overview, "overview", "", "make the view outbox.events of the Overview contract, for the events of this namespace")
	return cmd
}

func migrateStatusCommand() *cobra.Command {
	var file source
	cmd := &cobra.Command{
		Use: "status -f FILE", Short: "Show the schema's version and migrations", Args: cobra.NoArgs,
		RunE: work(func(cmd *cobra.Command) error {
			return withDatabase(cmd, file.owners(), func(ctx context.Context, conn *pgx.Conn, cfg spec.Config) error {
				schema := cfg.Database.Schema
				status, err := migrations.Status(ctx, conn, schema)
				if err != nil {
					return err
				}
				out := cmd.OutOrStdout()
				for _, m := range status.Applied {
					fmt.Fprintf(out, "applied %s at %s\n", m.Name, m.AppliedAt.UTC().Format("2006-01-02T15:04:05Z"))
				}
				for _, name := range status.Pending {
					fmt.Fprintf(out, "pending %s\n", name)
				}
				fmt.Fprintf(out, "schema %s has version %d; this binary's is %d\n", schema, status.Version, migrations.Version)
				return nil
			})
		}),
	}
	fileFlag(cmd, &file)
	return cmd
}

func migrateGrantsCommand() *cobra.Command {
	var file source
	var schema, role, kind string
	var apply, requireData bool
	cmd := &cobra.Command{
		Use: "grants --role NAME [--for KIND] [--schema NAME | -f FILE] [--apply]", Args: cobra.NoArgs,
		Short: "Print, or apply, what a login needs",
		Long: `Print the statements that give a role the rights that a dispatcher or a producer uses, or a replay login, which
replays and discards dead letters, or a worker that calls the M10 functions, or a producer of the Overview contract,
for the owner to run. With --apply the login of FILE, which must be the owner's, runs them. A producer also gets the
setting outbox.require_data, with which enqueue refuses an event whose transaction has written no data before it. That
takes a superuser; --require-data=false leaves it out, also for a service that enqueues without data.`,
		RunE: work(func(cmd *cobra.Command) error {
			k := migrations.Kind(kind)
			if !slices.Contains([]migrations.Kind{migrations.Dispatcher, migrations.Producer, migrations.ReplayLogin, migrations.M10Worker, migrations.OverviewProducer}, k) {
				return fmt.Errorf("--for is %q; choose dispatcher, producer, replay, m10 or overview", kind)
			}
			if apply && file.file == "" {
				return errors.New("--apply needs a database to connect to; name the owner's file with -f")
			}
			if apply {
				return withDatabase(cmd, file.owners(), func(ctx context.Context, conn *pgx.Conn, cfg spec.Config) error {
					return grant(ctx, conn, cfg.Database.Schema, role, k, requireData, cmd.OutOrStdout())
				})
			}
			if file.file != "" {
				cfg, err := load(file, false)
				if err != nil {
					return err
				}
				schema = cfg.Database.Schema
			}
			for _, statement := range statements(schema, role, k, requireData) {
				fmt.Fprintln(cmd.OutOrStdout(), statement+";")
			}
			return nil
		}),
	}
	cmd.Flags().StringVarP(&file.file, "file", "f", "", "the file with the OutboxDispatcher, for its schema, and with --apply for its login")
	file.flags(cmd)
	cmd.Flags().StringVar(&schema, "schema", "outbox", "the schema, when there is no file")
	cmd.Flags().StringVar(&role, "role", "", "who is to have the rights")
	cmd.Flags().StringVar(&kind, "for", string(migrations.Dispatcher), "what the role does: dispatcher, producer, replay, m10 or overview")
	cmd.Flags().BoolVar(&apply, "apply", false, "run the statements instead of printing them")
	cmd.Flags().BoolVar(&requireData, "require-data", true, "set outbox.require_data for a producer")
	cmd.MarkFlagsMutuallyExclusive("file", "schema")
	if err := cmd.MarkFlagRequired("role"); err != nil {
		panic(err) // the flag is there
	}
	return cmd
}

// withDatabase connects to the database of a file, of which it needs no more.
func withDatabase(cmd *cobra.Command, file source, do func(context.Context, *pgx.Conn, spec.Config) error) error {
	ctx := migrations.ReportWaits(cmd.Context(), func(sentence string) { fmt.Fprintln(cmd.ErrOrStderr(), sentence) })
	cfg, err := load(file, false)
	if err != nil {
		return err
	}
	conn, err := connect(ctx, cfg)
	if err != nil {
		return err
	}
	defer disconnect(ctx, conn)
	return do(ctx, conn, cfg)
}

func up(ctx context.Context, conn *pgx.Conn, schema string, out io.Writer) error {
	applied, err := migrations.Up(ctx, conn, schema)
	for _, m := range applied {
		fmt.Fprintf(out, "applied %s\n", m.Name)
	}
	if err != nil {
		return fmt.Errorf("%w%s", err, ownerHint(err))
	}
	fmt.Fprintf(out, "schema %s is at version %d\n", schema, migrations.Version)
	return nil
}

// setJournal does what the file says about the journal, if anything.
func setJournal(ctx context.Context, conn *pgx.Conn, cfg spec.Config, out io.Writer) error {
	if cfg.Journal == nil {
		return nil
	}
	j := migrations.Journal{Enabled: cfg.Journal.Mode == spec.JournalEnabled, Retention: cfg.Journal.Retention.D()}
	if _, err := migrations.SetJournal(ctx, conn, cfg.Database.Schema, j); err != nil {
		return fmt.Errorf("%w%s", err, ownerHint(err))
	}
	word := map[bool]string{false: "off", true: "on"}[j.Enabled]
	fmt.Fprintf(out, "the journal of schema %s is %s; records are kept for %s\n", cfg.Database.Schema, word, cfg.Journal.Retention)
	return nil
}

// upTenants makes the index that fairness needs.
func upTenants(ctx context.Context, conn *pgx.Conn, schema string, out io.Writer) error {
	made, err := migrations.UpTenants(ctx, conn, schema)
	if err != nil {
		return fmt.Errorf("%w%s", err, ownerHint(err))
	}
	fmt.Fprintf(out, "the index of tenants of schema %s %s\n", schema, map[bool]string{true: "made", false: "is as wanted"}[made])
	return nil
}

// upM10 installs what M10's workers call, when that is wanted.
func upM10(ctx context.Context, conn *pgx.Conn, schema string, wanted *spec.M10, out io.Writer) error {
	if wanted == nil {
		return nil
	}
	if wanted.Publish != spec.M10Insert && wanted.Publish != spec.M10Upsert {
		return fmt.Errorf("--m10-publish is %q; choose Insert or Upsert", wanted.Publish)
	}
	installed, err := migrations.UpM10(ctx, conn, schema, migrations.M10{
		Namespace: wanted.Namespace, Topic: wanted.Topic, Upsert: wanted.Publish == spec.M10Upsert,
	})
	if err != nil {
		return fmt.Errorf("%w%s", err, ownerHint(err))
	}
	state := "is as wanted"
	if installed {
		state = "installed"
	}
	fmt.Fprintf(out, "m10 %s: schema %s, namespace %s, topic %s, publish %s\n", state, schema, wanted.Namespace, wanted.Topic, wanted.Publish)
	return nil
}

// upOverview makes the view of Overview's producers, when a namespace says that it is wanted.
func upOverview(ctx context.Context, conn *pgx.Conn, schema, namespace string, out io.Writer) error {
	if namespace == "" {
		return nil
	}
	installed, err := migrations.UpOverview(ctx, conn, schema, migrations.Overview{Namespace: namespace})
	if err != nil {
		return fmt.Errorf("%w%s", err, ownerHint(err))
	}
	state := "is as wanted"
	if installed {
		state = "installed"
	}
	fmt.Fprintf(out, "overview %s: schema %s, namespace %s\n", state, schema, namespace)
	return nil
}

// statements give a role its rights, and at last a producer the setting that requires data.
func statements(schema, role string, kind migrations.Kind, requireData bool) []string {
	all := migrations.Grants(schema, role, kind)
	if requireData && kind == migrations.Producer {
		all = append(all, migrations.RequireData(role))
	}
	return all
}

// grantLogins gives the logins of a file their rights: the dispatchers', and that of replays where there is one. Deliveries do not
// need the second: what it lacks is printed and is the termination message, and fails nothing.
func grantLogins(ctx context.Context, conn *pgx.Conn, schema string, file source, out io.Writer) error {
	for _, kind := range []migrations.Kind{migrations.Dispatcher, migrations.ReplayLogin} {
		if kind == migrations.ReplayLogin {
			file.Login = spec.LoginReplay
		}
		cfg, err := load(file, false)
		if err != nil {
			return err
		}
		if kind == migrations.ReplayLogin && !cfg.ReplayLogin {
			break
		}
		role, err := database.Login(cfg.Database)
		if err != nil {
			err = fmt.Errorf("find the login to grant %s's rights to: %w", article(kind), err)
		} else {
			err = grant(ctx, conn, schema, role, kind, false, out)
		}
		if err != nil && kind == migrations.ReplayLogin {
			text := brief(fmt.Errorf("replayLogin gets no rights: %w; then migrate again, or run dispatcher migrate grants --for replay", err))
			fmt.Fprintln(out, text)
			writeTerminationMessage(text) // the operator's Job has succeeded all the same
		} else if err != nil {
			return err
		}
	}
	return nil
}

// grant gives a role its rights, all or none.
func grant(ctx context.Context, conn *pgx.Conn, schema, role string, kind migrations.Kind, requireData bool, out io.Writer) error {
	hint, inherits := ownerHint, ""
	err := migrations.Transact(ctx, conn, schema, func(tx pgx.Tx) error { // two that grant at once fail: tuple concurrently updated
		for _, statement := range statements(schema, role, kind, requireData) {
			if statement == migrations.RequireData(role) {
				hint = func(error) string {
					return "; have a superuser run what the command prints without --apply; or add --require-data=false," +
						" and set it in the service's connection string: options=-c outbox.require_data=on"
				}
				var login bool
				if err := tx.QueryRow(ctx, `select coalesce((select rolcanlogin from pg_roles where rolname = $1), true)`, role).Scan(&login); err != nil {
					return err
				}
				if !login {
					inherits = fmt.Sprintf("%s cannot log in, and its members do not inherit outbox.require_data: set it on each login: %s\n", role, migrations.RequireData("LOGIN"))
				}
			}
			if _, err := tx.Exec(ctx, statement); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("grant %s's rights on schema %s to %s: %w%s", article(kind), schema, role, err, hint(err))
	}
	fmt.Fprintf(out, "granted %s's rights on schema %s to %s\n%s", article(kind), schema, role, inherits)
	return nil
}

func article(kind migrations.Kind) string {
	switch kind {
	case migrations.ReplayLogin:
		return "a replay login"
	case migrations.M10Worker:
		return "an M10 worker"
	case migrations.OverviewProducer:
		return "an Overview producer"
	}
	return "a " + string(kind)
}

// ownerHint is the remedy when the login is not the owner's, or the role is missing.
func ownerHint(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		switch pg.Code {
		case "42501":
			return "; log in as the owner of the schema, or as a role that may create it (grant create on database)"
		case "42704":
			return "; create the role, or correct its name"
		}
	}
	return ""
}
