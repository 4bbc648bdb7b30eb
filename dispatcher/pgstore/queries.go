package pgstore

import (
	"embed"
	"strings"

	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sqlfile"
)

//go:embed sql/*.sql
var files embed.FS

// queries are the statements for one schema, by their names.
type queries map[string]string

// load reads the files, and puts the parts of claim_parts.sql into those of the claims.
func load(schema string) queries {
	all := queries(sqlfile.All(files, schema))
	_, text, _ := strings.Cut(all["claim_parts"], "\n\n-- ")
	var parts []string
	for part := range strings.SplitSeq(text, "\n\n-- ") {
		name, sql, _ := strings.Cut(part, "\n")
		parts = append(parts, "{"+name+"}", strings.TrimSpace(sql))
	}
	expand := strings.NewReplacer(parts...).Replace
	for name, sql := range all {
		if strings.HasPrefix(name, "claim") {
			all[name] = expand(expand(expand(sql))) // parts have parts
		}
	}
	return all
}
