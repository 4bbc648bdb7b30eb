package migrations

import (
	"regexp"
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

func TestParseReadsVersionAndOldestReader(t *testing.T) {
	t.Parallel()
	m, err := parse("0012_more.up.sql", "-- oldest-reader: 9\nselect 1;")
	need.That(t, err == nil && m.version == 12 && m.name == "0012_more" && m.oldestReader == 9, "parsed %+v, %v", m, err)
	for name, sql := range map[string]string{"more.up.sql": "-- oldest-reader: 1\n", "0001_more.up.sql": "select 1;"} {
		need.Fails(t, name, "%s: error is %v, want one that names the file", need.Err(parse(name, sql)), name)
	}
}
