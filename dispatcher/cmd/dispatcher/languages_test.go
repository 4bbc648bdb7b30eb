package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	consume "github.com/outbox-operator/outbox-operator/dispatcher/client/consumer"
	"github.com/outbox-operator/outbox-operator/hack/testing/languages"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// frames put an example of the producers' page into a program that places the order o-1, which commits, o-2, which rolls back, and o-3
// on the wrong handle, whose error it prints.
var frames = []struct{ heading, language, before, after string }{
	{"## JDBC", "java", "import java.sql.*;\npublic class Billing {\n", `
    public static void main(String[] args) throws Exception {
        try (var db = DriverManager.getConnection(System.getenv("JDBC_URL"))) {
            db.setAutoCommit(false);
            if (!place(db, "o-1", "{}")) throw new AssertionError("not inserted");
            db.commit();
            place(db, "o-2", "{}");
            db.rollback();
            db.setAutoCommit(true);
            try { place(db, "o-3", "{}"); } catch (SQLException e) { System.out.println(e.getMessage()); }
        }
    }
}`},
	{"## Spring, with JdbcTemplate", "java", `import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.jdbc.datasource.*;
import org.springframework.transaction.annotation.Transactional;
import org.springframework.transaction.support.TransactionTemplate;
public class Billing {
    JdbcTemplate jdbc;
`, `
    public static void main(String[] args) {
        var source = new DriverManagerDataSource(System.getenv("JDBC_URL"));
        var service = new Billing();
        service.jdbc = new JdbcTemplate(source);
        var transaction = new TransactionTemplate(new DataSourceTransactionManager(source)); // what @Transactional is made of
        transaction.executeWithoutResult(status -> service.place("o-1", "{}"));
        transaction.executeWithoutResult(status -> { service.place("o-2", "{}"); status.setRollbackOnly(); });
        try { service.place("o-3", "{}"); } catch (RuntimeException e) { System.out.println(e.getMessage()); }
    }
}`},
	{"## Spring Modulith", "java", `import java.util.function.Consumer;
import org.springframework.context.*;
import org.springframework.context.support.GenericApplicationContext;
import org.springframework.expression.spel.support.StandardEvaluationContext;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.jdbc.datasource.*;
import org.springframework.modulith.events.*;
import org.springframework.modulith.events.core.EventSerializer;
import org.springframework.modulith.events.support.BrokerRouting;
import org.springframework.transaction.support.TransactionTemplate;
public class Billing {
    @Externalized("orders::#{#this.orderId()}")
    public record OrderPlaced(String orderId) {}
`, `
    public static void main(String[] args) {
        var source = new DriverManagerDataSource(System.getenv("JDBC_URL"));
        var jdbc = new JdbcTemplate(source);
        var context = new GenericApplicationContext();
        context.addApplicationListener(new Outbox(EventExternalizationConfiguration.externalizing().select(EventExternalizationConfiguration.annotatedAsExternalized()).build(), jdbc, new EventSerializer() {
            public Object serialize(Object event) { return "{}"; }
            public <T> T deserialize(Object event, Class<T> type) { return null; }
        }));
        context.refresh();
        Consumer<String> place = id -> { jdbc.update("insert into orders (id) values (?)", id); context.publishEvent(new OrderPlaced(id)); };
        var transaction = new TransactionTemplate(new DataSourceTransactionManager(source));
        transaction.executeWithoutResult(status -> place.accept("o-1"));
        transaction.executeWithoutResult(status -> { place.accept("o-2"); status.setRollbackOnly(); });
        try { place.accept("o-3"); } catch (RuntimeException e) { System.out.println(e.getMessage()); }
    }
}`},
	{"## Spring, with JPA", "java", `import jakarta.persistence.*;
import java.util.logging.*;
import org.hibernate.boot.registry.BootstrapServiceRegistryBuilder;
import org.hibernate.cfg.Configuration;
import org.springframework.orm.jpa.*;
import org.springframework.transaction.annotation.Transactional;
import org.springframework.transaction.support.TransactionTemplate;
public class Billing {
    @Entity @Table(name = "orders")
    public static class Order {
        @Id String id;
        String getId() { return id; }
        static Order of(String id) { var order = new Order(); order.id = id; return order; }
    }
    EntityManager entityManager;
`, `
    public static void main(String[] args) {
        Logger.getLogger("").setLevel(Level.SEVERE);
        var classes = new BootstrapServiceRegistryBuilder().applyClassLoader(Billing.class.getClassLoader()).build();
        var entities = new Configuration(classes).addAnnotatedClass(Order.class)
            .setProperty("jakarta.persistence.jdbc.url", System.getenv("JDBC_URL")).buildSessionFactory();
        var service = new Billing();
        service.entityManager = SharedEntityManagerCreator.createSharedEntityManager(entities); // what @PersistenceContext injects
        var transaction = new TransactionTemplate(new JpaTransactionManager(entities)); // what @Transactional is made of
        transaction.executeWithoutResult(status -> service.place(Order.of("o-1"), "{}"));
        transaction.executeWithoutResult(status -> { service.place(Order.of("o-2"), "{}"); status.setRollbackOnly(); });
    }
}`},
	{"## SQLAlchemy", "python", "import json, os\nfrom sqlalchemy import create_engine, text\nfrom sqlalchemy.orm import Session\n", `
engine = create_engine(os.environ["DATABASE_URL"].replace("postgres://", "postgresql+psycopg://").replace("postgresql://", "postgresql+psycopg://"))
with Session(engine) as session, session.begin():
    place(session, "o-1", {})
with Session(engine) as session:
    place(session, "o-2", {})
    session.rollback()
with Session(engine.execution_options(isolation_level="AUTOCOMMIT")) as session:
    try: place(session, "o-3", {})
    except Exception as e: print(e)
`},
	{"## SQLAlchemy, async", "python", "import asyncio, json, os\nfrom sqlalchemy import text\nfrom sqlalchemy.ext.asyncio import AsyncSession, create_async_engine\n", `
async def main():
    engine = create_async_engine(os.environ["DATABASE_URL"].split("?")[0].replace("postgres://", "postgresql://").replace("postgresql://", "postgresql+asyncpg://"))
    async with AsyncSession(engine) as session, session.begin():
        await place(session, "o-1", {})
    async with AsyncSession(engine) as session:
        await place(session, "o-2", {})
        await session.rollback()
    async with AsyncSession(engine.execution_options(isolation_level="AUTOCOMMIT")) as session:
        try: await place(session, "o-3", {})
        except Exception as e: print(e)
    await engine.dispose()
asyncio.run(main())
`},
	{"## Django", "python", `import json, os
from urllib.parse import urlsplit
import django
from django.conf import settings
from django.db import connection, models, transaction
url = urlsplit(os.environ["DATABASE_URL"])
settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "HOST": url.hostname, "PORT": url.port,
    "NAME": url.path[1:], "USER": url.username, "PASSWORD": url.password}})
django.setup()
class Order(models.Model):
    id = models.TextField(primary_key=True)
    class Meta: app_label, db_table = "shop", "orders"
`, `
place("o-1", {})
with transaction.atomic():
    place("o-2", {})
    transaction.set_rollback(True)
try: place.__wrapped__("o-3", {})  # without atomic
except Exception as e: print(e)
`},
	{"## psycopg, a batch", "python", "import json, os, psycopg\n", `
with psycopg.connect(os.environ["DATABASE_URL"]) as connection:
    place(connection, "o-1", [{}])
    with connection.transaction(force_rollback=True):
        place(connection, "o-2", [{}, {}])
`},
	{"## node-postgres", "typescript", "import pg from \"pg\";\n", `
const db = new pg.Client({ connectionString: process.env.DATABASE_URL });
await db.connect();
await db.query("begin");
await place(db, "o-1", {});
await db.query("commit");
await db.query("begin");
await place(db, "o-2", {});
await db.query("rollback");
await db.end();
const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL });
await place(pool as never, "o-3", {}).catch((e) => console.log(e.message));
await pool.end();
`},
	{"## Drizzle", "typescript", `import { sql } from "drizzle-orm";
import { drizzle, type NodePgDatabase } from "drizzle-orm/node-postgres";
import { pgTable, text } from "drizzle-orm/pg-core";
import pg from "pg";
const orders = pgTable("orders", { id: text("id").primaryKey() });
`, `
const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL });
const db = drizzle(pool);
await db.transaction((tx) => place(tx, "o-1", {}));
await db.transaction(async (tx) => { await place(tx, "o-2", {}); tx.rollback(); }).catch(() => {});
await place(db, "o-3", {}).catch((e) => console.log(String(e.cause)));
await pool.end();
`},
	{"## Knex", "typescript", "import library, { type Knex } from \"knex\";\n", `
const knex = library.knex({ client: "pg", connection: process.env.DATABASE_URL });
await knex.transaction((trx) => place(trx, "o-1", {}));
await knex.transaction(async (trx) => { await place(trx, "o-2", {}); throw new Error("rolled back"); }).catch(() => {});
await place(knex, "o-3", {}).catch((e) => console.log(e.message));
await knex.destroy();
`},
	{"## Prisma", "typescript", `import { execFileSync } from "node:child_process";
import { writeFileSync } from "node:fs";
import { PrismaPg } from "@prisma/adapter-pg";
declare namespace Prisma { type TransactionClient = any } // generated below
`, `
const here = (file: string) => new URL(file, import.meta.url).pathname;
writeFileSync(here("schema.prisma"), 'generator client {\n provider = "prisma-client-js"\n}\ndatasource db {\n provider = "postgresql"\n}\nmodel orders {\n id String @id\n}\n');
execFileSync(here("../node_modules/.bin/prisma"), ["generate", "--schema", here("schema.prisma")], // which downloads an engine that it does not run
  { stdio: "pipe", env: { ...process.env, PRISMA_SCHEMA_ENGINE_BINARY: process.execPath } });
const { PrismaClient } = ((await import("@prisma/client")) as any).default;
const prisma = new PrismaClient({ adapter: new PrismaPg({ connectionString: process.env.DATABASE_URL! }) });
await prisma.$transaction((tx: Prisma.TransactionClient) => place(tx, "o-1", {}));
await prisma.$transaction(async (tx: Prisma.TransactionClient) => { await place(tx, "o-2", {}); throw new Error("rolled back"); }).catch(() => {});
await place(prisma, "o-3", {}).catch((e: Error) => console.log(e.message));
await prisma.$disconnect();
`},
}

// The examples of the producers' page, as they stand there, add an event to the transaction of the framework that they are for. With
// outbox.require_data the wrong handle is refused, and the right one is not.
//
// CONTRACT: C-10
func TestProducersOfThePageCommitWithTheirData(t *testing.T) {
	t.Parallel()
	for _, frame := range frames {
		t.Run(strings.TrimPrefix(frame.heading, "## "), func(t *testing.T) {
			t.Parallel()
			language := inLanguages[frame.language]
			cmd, err := language.command(t.Context(), t, frame.before+block(t, "../../client/producer/languages.md", frame.heading, frame.language)+"\n"+frame.after)
			need.Server(t, err, language.missing)
			db := pgtest.Open(t, pgtest.Migrated(t))
			pgtest.Exec(db, "create table public.orders (id text primary key)")
			pgtest.Exec(db, `do $$ begin execute format('alter database %I set outbox.require_data = on', current_database()); end $$`)
			cmd.Env = append(cmd.Env, "DATABASE_URL="+db.Config().ConnString(), "JDBC_URL="+jdbc(t, db.Pool))
			out, err := cmd.CombinedOutput()
			const sentence = "outbox: enqueue after the data, on the transaction's own handle: "
			if err != nil || strings.Contains(frame.after, "o-3") && !strings.Contains(string(out), sentence) {
				t.Fatalf("%v, want the wrong handle refused: %s", err, out)
			}
			orders := pgtest.Value[string](db, "select string_agg(id, ' ') from public.orders where id <> 'o-3'") // whatever became of its order
			events := pgtest.Value[string](db, "select string_agg(aggregate_id, ' ') from "+pgtest.Schema+".outbox_events")
			need.That(t, orders == "o-1" && events == "o-1", "orders %q and events of %q, want those of o-1", orders, events)
		})
	}
}

// inLanguages run the program of a page.
var inLanguages = map[string]struct {
	heading string
	command func(ctx context.Context, t *testing.T, program string) (*exec.Cmd, error)
	missing error
}{
	"python": {"## Python", func(ctx context.Context, _ *testing.T, program string) (*exec.Cmd, error) {
		return languages.Python(ctx, []string{"psycopg[binary]==3.2.10", "SQLAlchemy[asyncio]==2.0.43", "asyncpg==0.30.0", "Django==5.2.8"}, "-c", program)
	}, languages.ErrMissing},
	"typescript": {"## TypeScript", func(ctx context.Context, _ *testing.T, program string) (*exec.Cmd, error) {
		return languages.TypeScript(ctx, []string{"pg@8.16.3", "@types/pg@8.15.5", "drizzle-orm@0.45.1", "knex@3.1.0", "prisma@7.10.0", "@prisma/client@7.10.0", "@prisma/adapter-pg@7.10.0"}, program)
	}, languages.ErrMissing},
	"java": {"## Java", func(ctx context.Context, t *testing.T, program string) (*exec.Cmd, error) {
		return languages.Java(ctx, languages.PostgresJars, t.TempDir(), "Billing", program)
	}, languages.ErrMissing},
}

// block is the first block of a language below a heading of a page, as it stands there.
func block(t *testing.T, page, heading, language string) string {
	t.Helper()
	text, err := os.ReadFile(page)
	check(t, err)
	_, below, _ := strings.Cut(string(text), "\n"+heading+"\n")
	_, rest, ok := strings.Cut(below, "\n```"+language+"\n")
	program, _, ended := strings.Cut(rest, "\n```\n")
	need.Must(t, ok && ended, "%s has no block of %s", page, language)
	return program
}

// foreign is a consumer in another language, behind a proxy that obeys the hooks.
type foreign struct {
	*pgxpool.Pool
	dir, port string
	start     func() *exec.Cmd
	running   *exec.Cmd
	mu        sync.Mutex
	hooks     map[string]string // the state of each
}

// states are what a hook does to the database.
var states = map[string]map[string]string{
	"fail":   {"on": "alter table invoices rename to hidden", "off": "alter table hidden rename to invoices"},
	"record": {"on": "alter table processed_events rename to unseen", "off": "alter table unseen rename to processed_events"},
	"crash": {"on": `create function crash() returns trigger language plpgsql as 'begin perform pg_terminate_backend(pg_backend_pid()); perform pg_sleep(1); return new; end';
		create trigger crash after insert on invoices for each row execute function crash()`, "off": "drop function crash cascade"},
}

// obey does what a hook's command has requested since the last request.
func (f *foreign) obey(ctx context.Context, t *testing.T) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for hook, sql := range states {
		state, _ := os.ReadFile(filepath.Join(f.dir, hook))
		if now := strings.TrimSpace(string(state)); now != "" && now != f.hooks[hook] {
			if _, err := f.Exec(ctx, sql[now]); err != nil {
				t.Errorf("%s %s: %v", hook, now, err)
			}
			f.hooks[hook] = now
		}
	}
	if os.Remove(filepath.Join(f.dir, "restart")) == nil {
		_ = f.running.Process.Kill()
		_ = f.running.Wait() // it was killed
		f.run(t)
	}
}

// run starts the consumer, and waits until it listens.
func (f *foreign) run(t *testing.T) {
	f.running = f.start()
	check(t, f.running.Start())
	pgtest.Eventually(t, "the consumer listens", func() bool {
		conn, err := net.Dial("tcp", "127.0.0.1:"+f.port)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
}

// The consumers in other languages, as they stand on the page, keep all rules: only the fence is not theirs.
//
// CONTRACT: C-81
func TestConsumersOfThePageKeepTheRules(t *testing.T) {
	t.Parallel()
	for name, language := range inLanguages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			program, err := language.command(t.Context(), t, block(t, "../../client/consumer/languages.md", language.heading, name))
			need.Server(t, err, language.missing)
			free, err := net.Listen("tcp", "127.0.0.1:0")
			check(t, err)
			f := &foreign{Pool: pgtest.Pool(t, pgtest.Empty(t)), dir: t.TempDir(), port: strconv.Itoa(free.Addr().(*net.TCPAddr).Port), hooks: map[string]string{}}
			check(t, free.Close())
			schema, err := os.ReadFile("../../client/consumer/sql/schema.sql")
			check(t, err)
			need.Want(t, consume.SQL(""), "consumer.SQL is not the file", string(schema))
			_, err = f.Exec(t.Context(), string(schema)+"create table invoices (tracking_id uuid, cents int not null, currency text not null)")
			check(t, err)
			dsn := f.Config().ConnString()
			f.start = func() *exec.Cmd {
				cmd := exec.CommandContext(t.Context(), program.Path, program.Args[1:]...)
				cmd.Env = append(slices.Clip(program.Env), "PORT="+f.port, "DATABASE_URL="+dsn, "JDBC_URL="+jdbc(t, f.Pool))
				cmd.Stderr, cmd.WaitDelay = t.Output(), time.Second
				return cmd
			}
			f.run(t)
			t.Cleanup(func() { _ = f.running.Process.Kill(); _ = f.running.Wait() })
			to, err := url.Parse("http://127.0.0.1:" + f.port)
			check(t, err)
			proxy := httputil.NewSingleHostReverseProxy(to)
			front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				f.obey(context.WithoutCancel(r.Context()), t)
				if r.Method == http.MethodPost {
					proxy.ServeHTTP(w, r)
					return
				}
				var n int
				if err := f.QueryRow(r.Context(), "select count(*) from invoices where tracking_id = $1", r.FormValue("id")).Scan(&n); err != nil {
					http.Error(w, err.Error(), http.StatusInternalServerError)
				}
				fmt.Fprint(w, n)
			}))
			t.Cleanup(front.Close)
			payload := filepath.Join(f.dir, "order.json")
			check(t, os.WriteFile(payload, []byte(`{"cents": 4200, "currency": "EUR"}`), 0o600))
			args := []string{"verify-consumer", "--url", front.URL + "/events", "--type", "OrderPlaced", "--payload", payload, "--optional", "currency",
				"--probe", front.URL + "?id={id}", "--restart", "touch " + filepath.Join(f.dir, "restart")}
			for flag, hook := range map[string]string{"--fail": "fail", "--fail-record": "record", "--crash": "crash"} {
				args = append(args, flag, "echo {state} > "+filepath.Join(f.dir, hook))
			}
			run(t, "", args...).ok(t, "of 19 checks 18 passed, 0 passed partly, 0 found a rule broken, 1 were not run\n",
				"RULE-010-003  the fence                        NotRun  optional; set --probe-token-member")
		})
	}
}

// jdbc is the URL of a pool's database for Java.
func jdbc(t *testing.T, pool *pgxpool.Pool) string {
	t.Helper()
	c := pool.Config().ConnConfig
	return fmt.Sprintf("jdbc:postgresql://%s:%d/%s?user=%s&password=%s", c.Host, c.Port, c.Database, c.User, url.QueryEscape(c.Password))
}
