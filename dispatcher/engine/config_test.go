package engine

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// defaults are the defaults of each field of the engine's Config, with the field's name in the resource. Backoff is in
// addition to them.
var defaults = map[string]struct{ name, value string }{
	"Lease":           {"lease", "30s"},
	"PollInterval":    {"pollInterval", "1s"},
	"BatchSize":       {"batchSize", "2000"},
	"Concurrency":     {"concurrency", "16"},
	"MaxConcurrency":  {"maxConcurrency", "256"},
	"MaxBytes":        {"maxInFlightBytes", "33554432"},
	"MaxAttempts":     {"maxAttempts", "20"},
	"Ordering":        {"ordering", "None"},
	"OnDead":          {"onDead", "Continue"},
	"DeliveryTimeout": {"timeout", "5m"},
	"GracePeriod":     {"gracePeriod", "30s"},
}

// notDefaults are the fields whose zero value is meant, or that only the library has.
var notDefaults = []string{"Topics", "Fairness", "TenantRateLimit", "RateLimit", "TopicRateLimits", "Backoff", "Paused", "Logger", "Observer"}

// A Go service and a resource that say nothing mean the same. What a process reads of one is compared in package spec.
//
// CONTRACT: C-32, C-34, C-35
func TestDefaultsAreTheSameEverywhere(t *testing.T) {
	engine, resource := reflect.ValueOf(withDefaults(dispatcher.Config{})), deliverySchema(t)
	for i := range engine.NumField() {
		field := engine.Type().Field(i).Name
		want, ok := defaults[field]
		if !ok {
			need.That(t, slices.Contains(notDefaults, field), "Config.%s has no line in this test", field)
			continue
		}
		got := engine.Field(i).Interface()
		if d, ok := got.(time.Duration); ok {
			got = spec.Duration(d)
		}
		need.That(t, fmt.Sprint(got) == want.value, "Config.%s is %v, want %s", field, got, want.value)
		need.Want(t, want.value, "%s of the resource is %s, want %s", strings.Trim(string(resource[want.name].Default), `"`), want.name)
	}

	hour := dispatcher.ExponentialBackoff(time.Second, time.Hour)
	need.Want[any](t, hour, "Config.Backoff is %v, want %v", engine.FieldByName("Backoff").Interface())
	need.Want(t, `{"strategy":"Exponential"}`, "backoff of the resource is %s, want Exponential", string(resource["backoff"].Default))
	for name, words := range map[string]string{"base": "When not set: 1s; for Linear, 60s.", "max": "When not set: 1h."} {
		said := strings.Join(strings.Fields(resource["backoff"].Properties[name].Description), " ")
		need.That(t, strings.Contains(said, words), "backoff.%s of the resource does not say %q: %s", name, words, said)
	}
}

// schema is what this test reads of a field of the CRD.
type schema struct {
	Default     json.RawMessage
	Description string
	Properties  map[string]schema
}

// deliverySchema are the fields of spec.delivery.
func deliverySchema(t *testing.T) map[string]schema {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "charts", "outbox-operator", "files", "crds", "outbox.dev_outboxdispatchers.yaml"))
	need.OK(t, err)
	var crd struct {
		Spec struct {
			Versions []struct {
				Schema struct{ OpenAPIV3Schema schema }
			}
		}
	}
	need.OK(t, yaml.Unmarshal(text, &crd))
	return crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties["delivery"].Properties
}

// CONTRACT: C-28
func TestPollIntervalAboveAThirdOfTheLeaseIsRefused(t *testing.T) {
	for _, test := range []struct {
		poll, lease time.Duration
		refused     bool
	}{
		{0, 0, false}, // the defaults
		{10 * time.Second, 30 * time.Second, false},
		{10*time.Second + 1, 30 * time.Second, true},
		{0, 2 * time.Second, true}, // the default poll interval is too long for this lease
		{15 * time.Second, 0, true},
	} {
		_, err := New(struct{ dispatcher.Store }{}, dispatcher.Handlers{}, dispatcher.Config{Lease: test.lease, PollInterval: test.poll})
		need.That(t, err != nil == test.refused, "pollInterval %v, lease %v: error %v, want refused %v", test.poll, test.lease, err, test.refused)
		if err == nil {
			continue
		}
		for _, word := range []string{"pollInterval (", "lease (", "a third", "lower", "raise"} {
			need.That(t, strings.Contains(err.Error(), word), "the error does not say %q: %v", word, err)
		}
	}
}

// CONTRACT: C-34
func TestNewRefuses(t *testing.T) {
	for want, cfg := range map[string]dispatcher.Config{
		"batchSize is -1":                                {BatchSize: -1},
		"batchSize is 10001":                             {BatchSize: 10_001},
		"concurrency is 1001":                            {Concurrency: 1001},
		"maxAttempts is -3":                              {MaxAttempts: -3},
		"gracePeriod is -1s":                             {GracePeriod: -time.Second},
		"maxBytes is -1":                                 {MaxBytes: -1},
		"lease is 99ms":                                  {Lease: 99 * time.Millisecond, PollInterval: time.Millisecond},
		"pollInterval is 1µs":                            {PollInterval: time.Microsecond},
		`ordering is "key"`:                              {Ordering: "key"},
		`onDead is "Stop"`:                               {OnDead: "Stop"},
		`topics[1] is empty`:                             {Topics: []string{"a", ""}},
		`topics lists "a" twice`:                         {Topics: []string{"a", "b", "a"}},
		"batchSize is -1; set it to":                     {BatchSize: -1, Concurrency: -2},
		"maxConcurrency is 1001":                         {MaxConcurrency: 1001},
		"deliveryTimeout is -1s; set it to at least 1ms": {DeliveryTimeout: -time.Second},
		"concurrency is -2; set it":                      {BatchSize: -1, Concurrency: -2}, // all mistakes are reported at once
	} {
		_, err := New(struct{ dispatcher.Store }{}, dispatcher.Handlers{}, cfg)
		need.That(t, err != nil && strings.Contains(err.Error(), want), "want an error with %q, got: %v", want, err)
	}
	need.That(t, need.Err(New(nil, dispatcher.Handlers{}, dispatcher.Config{})) != nil, "New took no store")
	need.That(t, need.Err(New(struct{ dispatcher.Store }{}, sinkOfNone{}, dispatcher.Config{})) != nil, "New took a sink with BatchSize 0")
}

type sinkOfNone struct{ dispatcher.Handlers }

func (sinkOfNone) BatchSize() int { return 0 }
