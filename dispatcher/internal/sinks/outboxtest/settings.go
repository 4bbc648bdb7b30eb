package outboxtest

import (
	"path/filepath"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/document"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/objects"
)

// Settings returns what a dispatcher reads of an object whose spec has this YAML, such as a sink, and whose namespace is shop.
// Each file of a Secret or ConfigMap is KEY in the folder NAME of dir, which may be empty.
func Settings(t testing.TB, dir, text string) spec.Config {
	t.Helper()
	dispatcher, path := map[string]any{"namespace": "shop"}, filepath.Join(t.TempDir(), "object.yaml")
	need.OK(t, yaml.UnmarshalStrict([]byte(text), &dispatcher))
	need.OK(t, objects.Write(path, "orders", dispatcher, map[string]any{"secretRef": map[string]any{"name": "orders-db"}}))
	c, err := document.Load(path, document.Options{Secrets: dir})
	need.OK(t, err)
	return c
}
