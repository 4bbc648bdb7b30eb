package desired

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

// either are fields of which one can be set, or stands for the other.
var either = [][]string{{"key", "secretKeys"}, {"caSecretRef", "caConfigMapRef"}, {"username", "usernameKey"}, {"secretRef", "secretKeys", "server", "user", "iam"}, {"name", "annotations"}, {"outboxRef", "database"}}

// The sample that says that it sets every field does.
func TestEverythingIsEverything(t *testing.T) {
	set := sampled(t, "http-everything.yaml")
	walk(func(f field) {
		if !f.leaf() || strings.HasPrefix(f.path, "outbox.adopt") || otherSink(f.path) || set[f.path] ||
			strings.HasPrefix(f.path, "delivery.tenantRateLimit") || // not for ordering Key: fairness.yaml has it
			strings.HasPrefix(f.path, "message.headers") { // not for contentMode Batch: message-headers.yaml has them, and adoption.yaml adopt
			return
		}
		parts := strings.Split(f.path, ".")
		for i, part := range parts {
			for _, one := range either {
				for _, other := range one {
					if slices.Contains(one, part) && other != part && set[strings.Join(append(slices.Clone(parts[:i]), other), ".")] {
						return
					}
				}
			}
		}
		t.Errorf("config/samples/http-everything.yaml does not set %s", f.path)
	})
}

// otherSink reports whether the field is one of another kind of sink than http.
func otherSink(path string) bool {
	parts := strings.Split(path, ".")
	return len(parts) > 1 && parts[0] == "sink" && parts[1] != "http" && isSinkKind(parts[1])
}

// Every kind of sink of the file is one of the resource, by the same name, and has a sample.
func TestEverySinkIsEverywhere(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(samples, "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no samples: %v", err)
	}
	shown := map[string]bool{}
	for _, file := range files {
		for path := range sampled(t, filepath.Base(file)) {
			shown[path] = true
		}
	}
	of := func(typ reflect.Type) (names []string) {
		for i := range typ.NumField() {
			names = append(names, named(typ.Field(i)))
		}
		return slices.Sorted(slices.Values(names))
	}
	kinds := reflect.TypeFor[v1alpha1.Sink]()
	if file, resource := of(reflect.TypeFor[config.Sink]()), of(kinds); !slices.Equal(file, resource) {
		t.Errorf("the file has the sinks %v, the resource %v", file, resource)
	}
	for i := range kinds.NumField() {
		name := named(kinds.Field(i))
		if !isSinkKind(name) {
			continue
		}
		s := v1alpha1.Sink{Auth: &v1alpha1.Auth{}}
		reflect.ValueOf(&s).Elem().Field(i).Set(reflect.New(kinds.Field(i).Type.Elem()))
		if got := SinkKind(s); got != name {
			t.Errorf("sink.%s becomes %q in the file", name, got)
		}
		if !shown["sink."+name] {
			t.Errorf("config/samples has none with sink.%s", name)
		}
	}
}

// samples is where they are.
var samples = filepath.Join("..", "..", "..", "config", "samples")

// sampled are the paths of the spec that a sample sets, those of an Outbox after outbox.
func sampled(t *testing.T, name string) map[string]bool {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(samples, name))
	if err != nil {
		t.Fatal(err)
	}
	set := map[string]bool{}
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		var o struct {
			Kind string
			Spec any
		}
		if err := yaml.Unmarshal([]byte(document), &o); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if in, ok := map[string]string{"OutboxDispatcher": "", "Outbox": "outbox."}[o.Kind]; ok {
			flatten(o.Spec, func(path string, _ any) { set[in+path] = true })
		}
	}
	return set
}
