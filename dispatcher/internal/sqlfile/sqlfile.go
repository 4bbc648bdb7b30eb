// Package sqlfile reads the statements of a package from its .sql files: a line "-- name: NAME" begins a statement, as in
// sqlc. A statement names the tables in the default schema, outbox, so that it runs in psql as it is, unless the package
// puts it together from parts.
package sqlfile

import (
	"io/fs"
	"path"
	"strings"

	"github.com/jackc/pgx/v5"
)

const begins = "-- name: "

// Reader returns what reads a statement of files by its name, for the tables of a schema. Also in a text, such as one that
// is made a regclass, the schema is quoted. A name that no statement has is a mistake of the build: it panics.
func Reader(files fs.ReadFileFS, schema string) func(name string) string {
	all := All(files, schema)
	return func(name string) string {
		sql, ok := all[name]
		if !ok {
			panic("no statement has the name " + name)
		}
		return sql
	}
}

// All returns the statements of files by their names, as [Reader] does.
func All(files fs.ReadFileFS, schema string) map[string]string {
	all, prefix := map[string]string{}, pgx.Identifier{schema}.Sanitize()+".outbox_"
	err := fs.WalkDir(files, ".", func(file string, _ fs.DirEntry, err error) error {
		if err != nil || path.Ext(file) != ".sql" {
			return err
		}
		text, err := files.ReadFile(file)
		for part := range strings.SplitSeq("\n"+string(text), "\n"+begins) {
			if name, sql, found := strings.Cut(part, "\n"); name != "" && found {
				all[name] = strings.ReplaceAll(strings.TrimSpace(sql), "outbox.outbox_", prefix)
			}
		}
		return err
	})
	if err != nil {
		panic(err) // they are embedded
	}
	return all
}
