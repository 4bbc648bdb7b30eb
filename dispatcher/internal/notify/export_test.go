package notify

// Settings are those that statements run with; $1 is the statement timeout.
const Settings = settings

// Statements are the statements by name, for schema "outbox".
func Statements() map[string]string {
	q := load("outbox")
	return map[string]string{"take": q.take, "sent": q.sent, "again": q.again, "waiting": q.waiting}
}
