package postgressink

import (
	"net/url"
	"testing"

	"github.com/google/uuid"
)

// Events arrive however the driver sends the statement: as is set for PgBouncer before 1.21, too.
func TestEveryModeOfTheDriver(t *testing.T) {
	dsn := inbox(t)
	for n, mode := range []string{"cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol"} {
		login, err := url.Parse(dsn)
		if err != nil {
			t.Fatal(err)
		}
		query := login.Query()
		query.Set("default_query_exec_mode", mode)
		login.RawQuery = query.Encode()
		batch := newEvents(2)
		batch[1].TenantID = uuid.NullUUID{UUID: uuid.New(), Valid: true}
		for _, err := range open(t, settings(login.String())).Deliver(t.Context(), batch) {
			if err != nil {
				t.Errorf("%s: %v", mode, err)
			}
		}
		if got := len(rows(t, dsn)); got != 2*(n+1) {
			t.Errorf("%s: %d rows, want %d", mode, got, 2*(n+1))
		}
	}
}
