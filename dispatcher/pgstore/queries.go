package pgstore

import (
	"embed"
	"strings"

	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sqlfile"
)

//go:embed sql/*.sql
var files embed.FS

// queries are the statements for one schema, by the names of their files.
type queries map[string]string

// load reads the files, and puts the parts of claim_parts.sql into those of the claims.
func load(schema string) queries {
	read := sqlfile.Reader(files, schema)
	_, text, _ := strings.Cut(read("claim_parts"), "\n\n-- ")
	var parts []string
	for part := range strings.SplitSeq(text, "\n\n-- ") {
		name, sql, _ := strings.Cut(part, "\n")
		parts = append(parts, "{"+name+"}", strings.TrimSpace(sql))
	}
	expand := strings.NewReplacer(parts...).Replace
	all := queries{}
	entries, err := files.ReadDir("sql")
	if err != nil {
		panic(err) // a mistake of the build
	}
	for _, entry := range entries {
		name := strings.TrimSuffix(entry.Name(), ".sql")
		all[name] = read(name)
		if strings.HasPrefix(name, "claim") {
			all[name] = expand(expand(expand(all[name]))) // parts have parts
		}
	}
	return all
}
