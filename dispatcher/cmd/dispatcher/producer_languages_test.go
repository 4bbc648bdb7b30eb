package main

import (
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// frames put an example of the producers' page into a program that places the order o-1, which commits, and o-2, which rolls back.
var frames = []struct{ heading, language, before, after string }{
	{"### JDBC", "java", "import java.sql.*;\npublic class Billing {\n", `
    public static void main(String[] args) throws Exception {
        try (var db = DriverManager.getConnection(System.getenv("JDBC_URL"))) {
            db.setAutoCommit(false);
            if (!place(db, "o-1", "{}")) throw new AssertionError("not inserted");
            db.commit();
            place(db, "o-2", "{}");
            db.rollback();
        }
    }
}`},
	{"### Spring, with JdbcTemplate", "java", `import org.springframework.jdbc.core.JdbcTemplate;
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
    }
}`},
	{"### Spring, with JPA", "java", `import jakarta.persistence.*;
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
	{"### SQLAlchemy", "python", "import json, os\nfrom sqlalchemy import create_engine, text\nfrom sqlalchemy.orm import Session\n", `
engine = create_engine(os.environ["DATABASE_URL"].replace("postgres://", "postgresql+psycopg://").replace("postgresql://", "postgresql+psycopg://"))
with Session(engine) as session, session.begin():
    place(session, "o-1", {})
with Session(engine) as session:
    place(session, "o-2", {})
    session.rollback()
`},
	{"### psycopg, a batch", "python", "import json, os, psycopg\n", `
with psycopg.connect(os.environ["DATABASE_URL"]) as connection:
    place(connection, "o-1", [{}])
    with connection.transaction(force_rollback=True):
        place(connection, "o-2", [{}, {}])
`},
	{"### node-postgres", "typescript", "import pg from \"pg\";\n", `
const db = new pg.Client({ connectionString: process.env.DATABASE_URL });
await db.connect();
await db.query("begin");
await place(db, "o-1", {});
await db.query("commit");
await db.query("begin");
await place(db, "o-2", {});
await db.query("rollback");
await db.end();
`},
}

// The examples of the producers' page, as they stand there, add an event to the transaction of the framework that they are for.
//
// CONTRACT: C-10
func TestProducersOfThePageCommitWithTheirData(t *testing.T) {
	t.Parallel()
	for _, frame := range frames {
		t.Run(strings.TrimPrefix(frame.heading, "### "), func(t *testing.T) {
			t.Parallel()
			language := languages[frame.language]
			cmd, err := language.command(t.Context(), t, frame.before+block(t, "../../producer/README.md", frame.heading, frame.language)+"\n"+frame.after)
			need.Server(t, err, language.missing)
			db := pgtest.Open(t, pgtest.Migrated(t))
			pgtest.Exec(db, "create table public.orders (id text primary key)")
			cmd.Env = append(cmd.Env, "DATABASE_URL="+db.Config().ConnString(), "JDBC_URL="+jdbc(t, db.Pool))
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			orders := pgtest.Value[string](db, "select string_agg(id, ' ') from public.orders")
			events := pgtest.Value[string](db, "select string_agg(aggregate_id, ' ') from "+pgtest.Schema+".outbox_events")
			if orders != "o-1" || events != "o-1" {
				t.Errorf("orders %q and events of %q, want those of o-1", orders, events)
			}
		})
	}
}
