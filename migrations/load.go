package migrations

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"regexp"
	"strconv"
	"strings"
)

//go:embed *.up.sql
var files embed.FS

// migration is one file NNNN_name.up.sql. Its first line says who can still read the schema after
// it: "-- oldest-reader: N". The second may say "-- transaction: none": the file is one statement that
// PostgreSQL takes only outside a transaction, such as create index concurrently if not exists.
type migration struct {
	version      int
	name         string
	oldestReader int
	transaction  bool
	checksum     string
	sql          string
}

var header = regexp.MustCompile(`^-- oldest-reader: (\d+)\n(-- transaction: none\n)?`)

// load returns the migrations of a directory in order, for a schema whose name it has checked.
func load(files fs.FS, schema string) ([]migration, error) {
	if err := checkSchemaName(schema); err != nil {
		return nil, err
	}
	entries, err := fs.ReadDir(files, ".") // sorted by name
	if err != nil {
		return nil, err
	}
	var all []migration
	for _, entry := range entries {
		sql, err := fs.ReadFile(files, entry.Name())
		if err != nil {
			return nil, err
		}
		m, err := parse(entry.Name(), string(sql))
		if err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	return all, nil
}

// parse reads one file.
func parse(fileName, sql string) (migration, error) {
	name := strings.TrimSuffix(fileName, ".up.sql")
	number, _, _ := strings.Cut(name, "_")
	version, err := strconv.Atoi(number)
	if err != nil {
		return migration{}, fmt.Errorf("migration %s: the name must start with a number: %w", fileName, err)
	}
	head := header.FindStringSubmatch(sql)
	if head == nil {
		return migration{}, fmt.Errorf("migration %s: the first line must be \"-- oldest-reader: N\"", fileName)
	}
	oldestReader, err := strconv.Atoi(head[1])
	if err != nil {
		return migration{}, fmt.Errorf("migration %s: oldest-reader: %w", fileName, err)
	}
	sum := sha256.Sum256([]byte(sql))
	return migration{version, name, oldestReader, head[2] == "", hex.EncodeToString(sum[:]), sql}, nil
}

// checkUnedited compares the applied migrations with this binary's. Those that only a newer binary
// knows are not compared.
func checkUnedited(applied []Applied, all []migration) error {
	for i, a := range applied[:min(len(applied), len(all))] {
		if m := all[i]; a.Version != m.version || a.Checksum != m.checksum {
			return fmt.Errorf("migration %s differs from the %s that the database has (checksums %.12s and %.12s): "+
				"another build has made the schema; run that build, or drop the schema, with its events, and migrate again",
				m.name, a.Name, m.checksum, a.Checksum)
		}
	}
	return nil
}

var schemaName = regexp.MustCompile(`^[a-z_][a-z0-9_]*$`)

// checkSchemaName is the rule of the resource's and the configuration file's schema fields.
func checkSchemaName(schema string) error {
	if len(schema) > 63 || !schemaName.MatchString(schema) || strings.HasPrefix(schema, "pg_") {
		return fmt.Errorf("schema %.70q cannot be used; name one of at most 63 lower-case characters, digits and underscores, "+
			"that starts with a lower-case character a to z or an underscore, and not with pg_, such as outbox", schema)
	}
	return nil
}
