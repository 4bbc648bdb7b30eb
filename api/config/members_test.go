package config

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

// Every kind of sink is looked at, and has a timeout that deliveryTimeout is compared with.
//
// CONTRACT: C-34
func TestEverySinkIsAMember(t *testing.T) {
	kinds := reflect.TypeFor[Sink]()
	for i := range kinds.NumField() {
		name, _, _ := strings.Cut(kinds.Field(i).Tag.Get("json"), ",")
		if _, ok := (Sink{}).all()[name]; !ok {
			t.Errorf("all() has no %s", name)
			continue
		}
		c := Config{Name: "orders", Namespace: "shop", Database: Database{DSN: "a"}}
		sink := reflect.New(kinds.Field(i).Type.Elem())
		reflect.ValueOf(&c.Sink).Elem().Field(i).Set(sink)
		if c.Sink.Kind() != name {
			t.Errorf("%s: its kind is %q", name, c.Sink.Kind())
		}
		if name == "log" { // it has no timeout
			continue
		}
		sink.Elem().FieldByName("Timeout").Set(reflect.ValueOf(Duration(6 * time.Minute)))
		c.ApplyDefaults()
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "deliveryTimeout is 5m, shorter than sink."+name+".timeout (6m)") {
			t.Errorf("a timeout of 6m: %v, want that deliveryTimeout is shorter", err)
		}
	}
	if n := len(Sink{}.all()); n != kinds.NumField() {
		t.Errorf("all() has %d kinds of sinks, of %d", n, kinds.NumField())
	}
}
