package config

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

// Every kind of sink is looked at, and has a timeout that delivery.timeout is compared with.
//
// CONTRACT: C-34
func TestEverySinkIsAMember(t *testing.T) {
	for _, kind := range SinkKinds() {
		name, _, _ := strings.Cut(kind.Tag.Get("json"), ",")
		c := Config{Name: "orders", Namespace: "shop", Database: Database{DSN: "a"}}
		reflect.ValueOf(&c.Sink).Elem().FieldByIndex(kind.Index).Set(reflect.New(kind.Type.Elem()))
		if c.Sink.Kind() != name {
			t.Errorf("%s: its kind is %q", name, c.Sink.Kind())
		}
		c.Sink.Timeout = Duration(6 * time.Minute)
		c.ApplyDefaults()
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "delivery.timeout is 5m, shorter than sink.timeout (6m)") {
			t.Errorf("a timeout of 6m: %v, want that delivery.timeout is shorter", err)
		}
	}
	if n := len(SinkKinds()); n != 11 {
		t.Errorf("there are %d kinds of sinks, want 11", n)
	}
}
