package migrations_test

import (
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// The signatures that the producer's page prints are those of the functions.
func TestReadmeSignatures(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Migrated(t))
	page, err := os.ReadFile("../dispatcher/producer/README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"enqueue", "enqueue_batch"} {
		found := regexp.MustCompile("(?s)<!-- " + name + " -->\n```sql\noutbox\\." + name + `\((.*?)\n\)` + "\n```").FindSubmatch(page)
		if found == nil {
			t.Errorf("the page does not print %s", name)
			continue
		}
		got := strings.Join(strings.Fields(string(found[1])), " ")
		arguments := pgtest.Value[string](d, `select pg_get_function_arguments(p.oid) from pg_proc as p where proname = $1 and pronamespace = 'outbox'::regnamespace`, name)
		if result := pgtest.Value[string](d, `select pg_get_function_result(p.oid) from pg_proc as p where proname = $1 and pronamespace = 'outbox'::regnamespace`, name); strings.HasPrefix(result, "TABLE") {
			arguments += ", " + result
		}
		if got != arguments {
			t.Errorf("the page says\n%s\nwant\n%s", got, arguments)
		}
	}
}

// The producers' page has the code of each wrong payload.
func TestReadmeCodes(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Migrated(t))
	page, err := os.ReadFile("../dispatcher/producer/README.md")
	if err != nil {
		t.Fatal(err)
	}
	for payload, code := range map[string]string{`{"a": NaN`: "22P02", `"\u0000"`: "22P05"} {
		var pg *pgconn.PgError
		if _, err := d.Exec(t.Context(), `select outbox.enqueue('shop', 'orders', $1::text::jsonb)`, payload); !errors.As(err, &pg) || pg.Code != code {
			t.Errorf("%s: got %v, want the code %s", payload, err, code)
		}
		if !strings.Contains(string(page), " "+code) {
			t.Errorf("the page does not name %s", code)
		}
	}
}

// The page for who runs the database names everything that the schema has.
func TestReadmeObjects(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Migrated(t))
	page, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range pgtest.Value[[]string](d, `select array_agg(name) from (
		select relname from pg_class where relnamespace = 'outbox'::regnamespace and relkind in ('r', 'v', 'S')
			and not exists (select from pg_depend where objid = pg_class.oid and deptype = 'i')
		union all select proname from pg_proc where pronamespace = 'outbox'::regnamespace) as o (name)`) {
		if !strings.Contains(string(page), "`"+name+"`") {
			t.Errorf("the page does not name %s", name)
		}
	}
}
