package sink_test

import (
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/sr"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink"
	"github.com/outbox-operator/outbox-operator/hack/servers/registry"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// The schemas of a real registry as validation sees them: the latest and a fixed version, with the
// schemas that they refer to, and from memory when the registry is gone.
//
// CONTRACT: C-32, C-72
// REQUIREMENT: STORAGE-36, STORAGE-57
func TestSchemasOfARealRegistry(t *testing.T) {
	server, err := registry.Start(t.Context())
	need.Server(t, err, registry.ErrMissing)
	stop := sync.OnceFunc(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	defer stop()
	admin, err := sr.NewClient(sr.URLs(server.URL()))
	if err != nil {
		t.Fatal(err)
	}
	register := func(subject, text string, references ...sr.SchemaReference) {
		t.Helper()
		if _, err := admin.CreateSchema(t.Context(), subject, sr.Schema{Type: sr.TypeJSON, Schema: text, References: references}); err != nil {
			t.Fatal(err)
		}
	}
	register("address", `{"$schema": "http://json-schema.org/draft-07/schema#", "required": ["zip"]}`)
	register("orders", `{"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"to": {"$ref": "address.json"}}}`,
		sr.SchemaReference{Name: "address.json", Subject: "address", Version: 1})
	register("orders", `{"$schema": "http://json-schema.org/draft-07/schema#", "required": ["total"]}`)
	register("number", `{"$schema": "http://json-schema.org/draft-07/schema#", "type": "number"}`)
	if _, err := admin.CreateSchema(t.Context(), "avro", sr.Schema{Schema: `"string"`}); err != nil {
		t.Fatal(err)
	}

	of := func(kind, subject string, version int) config.Validation {
		return config.Validation{Types: []string{kind}, Schema: &config.PayloadSchema{Registry: &config.RegistrySchema{Subject: subject, Version: version}}}
	}
	s, err := sink.New(config.Config{
		Sink: config.Sink{Log: &config.LogSink{}}, Message: config.Message{SchemaRegistry: &config.SchemaRegistry{URL: server.URL()},
			Validation: []config.Validation{of("Latest", "orders", 0), of("First", "orders", 1), of("Late", "number", 0), of("Missing", "missing", 0), of("Avro", "avro", 0)}},
	}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	// deliver wants no error, or a dead event by the schema, or a failed attempt, or that the registry is unreachable, by
	// parts of texts.
	deliver := func(kind, payload, wantDead, fails, unreachable string) {
		t.Helper()
		err := s.Deliver(t.Context(), []*dispatcher.Event{{ID: uuid.New(), Topic: "orders", EventType: kind, Payload: []byte(payload)}})[0]
		why, dead := dispatcher.PermanentReason(err)
		switch {
		case wantDead+fails+unreachable == "":
			if err != nil {
				t.Errorf("%s %s: %v", kind, payload, err)
			}
		case err == nil || !strings.Contains(err.Error(), wantDead+fails+unreachable):
			t.Errorf("%s %s: the error %v does not say %q", kind, payload, err, wantDead+fails+unreachable)
		case dead != (wantDead != "") || dead && why != dispatcher.ReasonSchemaValidationFailed || dispatcher.IsUnavailable(err) != (unreachable != ""):
			t.Errorf("%s %s: of the wrong kind: %v", kind, payload, err)
		}
	}
	known := func() {
		t.Helper()
		deliver("Latest", `{"total": 1, "to": {}}`, "", "", "")
		deliver("First", `{"to": {"zip": "10115"}}`, "", "", "")
		deliver("First", `{"to": {}}`, "at /to: schema:///address.json#/required (zip)", "", "")
	}
	known()
	deliver("Latest", `{}`, "#/required (total)", "", "")
	deliver("Missing", `{}`, "", "subject missing: it is not registered; register it there", "")
	deliver("Avro", `{}`, "", "is of type AVRO; name a subject that has a JSON Schema", "")
	stop()
	known()
	deliver("Latest", `{}`, "", "a newer schema could not be read, so it is tried again", "") // that may have it
	deliver("Late", `1`, "", "", "connection refused; check that it runs")
}
