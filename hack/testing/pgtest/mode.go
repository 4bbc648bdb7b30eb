package pgtest

import (
	"net/url"
	"testing"
)

// Mode is how the driver sends statements, as its setting default_query_exec_mode has it.
type Mode string

// In is a connection string of which the driver sends statements in the mode.
func (m Mode) In(dsn string) string {
	u, err := url.Parse(dsn)
	if err != nil {
		panic(err) // connection strings of this package are URLs
	}
	query := u.Query()
	query.Set("default_query_exec_mode", string(m))
	u.RawQuery = query.Encode()
	return u.String()
}

// EachMode runs a test in every mode of the driver, also in the ones for PgBouncer before 1.21.
func EachMode(t *testing.T, run func(t *testing.T, mode Mode)) {
	t.Helper()
	for _, mode := range []Mode{"cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol"} {
		t.Run(string(mode), func(t *testing.T) { run(t, mode) })
	}
}
