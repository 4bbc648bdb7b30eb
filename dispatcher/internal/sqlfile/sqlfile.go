// Package sqlfile reads the statements of a package, which are files: NAME.sql in its folder sql. A file names the tables
// in the default schema, outbox, so that it runs in psql as it is, unless the package puts it together from parts.
package sqlfile

import (
	"io/fs"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Reader returns what reads a statement of files by its name, for the tables of a schema. Also in a text, such as one that
// is made a regclass, the schema is quoted. A name that no file has is a mistake of the build: it panics.
func Reader(files fs.FS, schema string) func(name string) string {
	prefix := pgx.Identifier{schema}.Sanitize() + ".outbox_"
	return func(name string) string {
		sql, err := fs.ReadFile(files, "sql/"+name+".sql")
		if err != nil {
			panic(err)
		}
		return strings.ReplaceAll(string(sql), "outbox.outbox_", prefix)
	}
}
