package consumer_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/dispatcher/consumer"
)

var upcasters = consumer.Upcasters{"OrderPlaced": {
	1: consumer.Fields(func(f map[string]any) error { f["currency"] = "EUR"; return nil }),
	2: consumer.Fields(func(f map[string]any) error {
		f["cents"] = f["total"]
		delete(f, "total")
		return nil
	}),
}}

// A schema version is brought to the latest step by step; numbers keep their digits.
//
// CONTRACT: C-80
// REQUIREMENT: RULE-010-021
func TestUpcastersRunStepByStep(t *testing.T) {
	const one = `{"total":9007199254740993,"name":"<&>"}`
	for _, test := range []struct{ name, eventType, header, payload, want, version string }{
		{"from 1, which nothing says", "OrderPlaced", "", one, `{"cents":9007199254740993,"currency":"EUR","name":"<&>"}`, "3"},
		{"from the header", "OrderPlaced", "2", `{"total":1.10}`, `{"cents":1.10}`, "3"},
		{"from the header with a v", "OrderPlaced", "v2", `{"total":1.10}`, `{"cents":1.10}`, "3"},
		{"from the payload", "OrderPlaced", "", `{"schema_version":2,"total":1}`, `{"cents":1,"schema_version":2}`, "3"},
		{"from a text in the payload", "OrderPlaced", "", `{"schema_version":"2","total":1}`, `{"cents":1,"schema_version":"2"}`, "3"},
		{"null in the payload", "OrderPlaced", "", `{"schema_version":null,"total":1}`, `{"cents":1,"currency":"EUR","schema_version":null}`, "3"},
		{"header before payload", "OrderPlaced", "3", `{"schema_version":1}`, `{"schema_version":1}`, "3"},
		{"the latest", "OrderPlaced", "3", `{"cents":1}`, `{"cents":1}`, "3"},
		{"newer than ours", "OrderPlaced", "4", `{"cents":1,"new":2}`, `{"cents":1,"new":2}`, "4"},
		{"another type", "OrderShipped", "1", `{"total":1}`, `{"total":1}`, "1"},
	} {
		e := newEvent()
		e.EventType, e.Payload = test.eventType, []byte(test.payload)
		if test.header != "" {
			e.Headers = map[string]string{"schemaversion": test.header}
		}
		for range 2 { // the second time does nothing
			if err := upcasters.Apply(e); err != nil || string(e.Payload) != test.want || e.Header("schema_version") != test.version {
				t.Errorf("%s: %s, version %s, %v; want %s, %s", test.name, e.Payload, e.Header("schema_version"), err, test.want, test.version)
			}
		}
	}
}

// REQUIREMENT: RULE-010-021
func TestUpcastersThatAreMissingOrFail(t *testing.T) {
	gap := consumer.Upcasters{"OrderPlaced": {1: upcasters["OrderPlaced"][1], 3: upcasters["OrderPlaced"][2]}}
	failing := consumer.Upcasters{"OrderPlaced": {1: consumer.Fields(func(map[string]any) error { return errEffect })}}
	for name, test := range map[string]struct {
		u             consumer.Upcasters
		payload, want string
	}{
		"a gap":     {gap, `{"schema_version": 2}`, "no upcaster from it; add one, there are those from [1 3]"},
		"too old":   {upcasters, `{"schema_version": 0}`, "has schema_version 0"},
		"no number": {upcasters, `{"schema_version": "s3cret"}`, "whole number"},
		"failing":   {failing, `{}`, errEffect.Error()},
		"no object": {failing, `"s3cret"`, "no field"},
		"null":      {failing, `null`, "no object"},
	} {
		e := newEvent()
		e.Payload = []byte(test.payload)
		err := test.u.Apply(e)
		var refused *consumer.Refused
		if name == "no object" {
			test.want = "is a string"
		}
		if !errors.As(err, &refused) || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "s3cret") || string(e.Payload) != test.payload {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Unknown fields are ignored, missing ones have the defaults of the code, numbers keep their digits.
// REQUIREMENT: RULE-010-021
func TestDecodeKeepsDigitsAndDefaults(t *testing.T) {
	e := newEvent()
	e.Payload = []byte(`{"order": 42, "new_field": {"a": [1]}, "extra": 9007199254740993}`)
	order := struct {
		Order    int `json:"order"`
		Currency string
		Extra    any
	}{Currency: "EUR"}
	check(t, e.Decode(&order))
	if order.Order != 42 || order.Currency != "EUR" {
		t.Errorf("%+v", order)
	}
	if number, ok := order.Extra.(interface{ String() string }); !ok || number.String() != "9007199254740993" {
		t.Errorf("%v lost digits", order.Extra)
	}
	for payload, want := range map[string]string{
		`{"order": "s3cret"}`:  `field "order" is a string`,
		`{"order": 1234567.5}`: `field "order" is a number, want int`,
		`{"order": s3cret`:     "not valid JSON",
		`{} "s3cret"`:          "more after",
	} {
		e.Payload = []byte(payload)
		err := e.Decode(&order)
		var refused *consumer.Refused
		if !errors.As(err, &refused) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret") || strings.Contains(err.Error(), "1234567") {
			t.Errorf("%s: %v", payload, err)
		}
	}
	e.ContentType = "application/avro"
	if err := e.Decode(&order); err == nil || !strings.Contains(err.Error(), "application/avro") {
		t.Errorf("%v", err)
	}
}
