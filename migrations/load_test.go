package migrations

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// The files are numbered without gaps up to Version, each readable by some binary up to its own, and
// leave the schema's name to the migrator.
func TestMigrationFilesAreNumbered(t *testing.T) {
	t.Parallel()
	all, err := load(files, "outbox")
	need.OK(t, err)
	need.Want(t, Version, "%d migrations, but Version is %d", len(all))
	qualified := regexp.MustCompile(`outbox\.(outbox_|enqueue)`)
	for i, m := range all {
		need.That(t, m.version == i+1 && m.oldestReader >= 1 && m.oldestReader <= m.version,
			"%s is number %d, version %d with oldest reader %d", m.name, i+1, m.version, m.oldestReader)
		need.Want(t, "", "%s names a schema: %s", qualified.FindString(m.sql), m.name)
	}
}

// A migration that may have been applied does not change: testdata/frozen.sha256 has each, as sha256sum writes it.
func TestFrozenMigrationsStay(t *testing.T) {
	t.Parallel()
	frozen, err := os.ReadFile("testdata/frozen.sha256")
	need.OK(t, err)
	all, err := load(files, "outbox")
	need.OK(t, err)
	lines := strings.Split(strings.TrimSpace(string(frozen)), "\n")
	need.Must(t, len(lines) >= 9 && len(lines) <= len(all), "%d migrations are frozen, and there are %d", len(lines), len(all))
	for i, line := range lines {
		m := all[i]
		need.Want(t, line, "%s: it has changed to %s; write the change into a new migration", m.checksum+"  "+m.name+".up.sql", m.name)
	}
}

func TestParseReadsVersionAndOldestReader(t *testing.T) {
	t.Parallel()
	m, err := parse("0012_more.up.sql", "-- oldest-reader: 9\nselect 1;")
	need.That(t, err == nil && m.version == 12 && m.name == "0012_more" && m.oldestReader == 9, "parsed %+v, %v", m, err)
	for name, sql := range map[string]string{"more.up.sql": "-- oldest-reader: 1\n", "0001_more.up.sql": "select 1;"} {
		need.Fails(t, name, "%s: error is %v, want one that names the file", need.Err(parse(name, sql)), name)
	}
}
