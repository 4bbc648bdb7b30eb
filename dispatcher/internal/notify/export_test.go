package notify

import "github.com/outbox-operator/outbox-operator/dispatcher/internal/sqlfile"

// Settings are those that statements run with; $1 is the statement timeout.
const Settings = settings

// Statements are the statements by name, for schema "outbox".
func Statements() map[string]string { return sqlfile.All(files, "outbox") }
