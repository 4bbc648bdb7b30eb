package document

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"sigs.k8s.io/yaml"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// write makes a file of a folder.
func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	need.OK(t, os.MkdirAll(filepath.Dir(path), 0o755))
	need.OK(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

const orders = `apiVersion: outbox.dev/v1alpha1
kind: OutboxDispatcher
metadata: {name: orders, namespace: shop}
spec:
  namespace: shop
  outboxRef: {name: main}
  sink:
    http: {url: "https://example.com/events"}
    auth: {type: Basic, secretRef: {name: webhook}}
`

const main = `apiVersion: outbox.dev/v1alpha1
kind: Outbox
metadata: {name: main}
spec:
  secretRef: {name: orders-db}
  migration: {secretRef: {name: owner, key: uri}}
  retention: {delivered: 1h}
`

// The Outbox is found in the same file and in the same folder, and makes the same settings.
func TestLoadMakesTheSettingsOfBothObjects(t *testing.T) {
	inOne, apart := t.TempDir(), t.TempDir()
	one := write(t, inOne, "orders.yaml", "apiVersion: v1\nkind: Secret\nmetadata: {name: other}\n---\n"+orders+"---\n"+main)
	write(t, apart, "main.yaml", main)
	for dir, path := range map[string]string{inOne: one, apart: write(t, apart, "orders.yaml", orders)} {
		dsn := write(t, dir, "secrets/orders-db/dsn", "postgres://orders@db/shop")
		t.Setenv("WEBHOOK_PASSWORD", "secret")
		c, err := Load(path, Options{})
		need.OK(t, err)
		need.That(t, c.Name == "shop/orders" && c.Namespace == "shop" && c.Database.DSNFile == dsn && c.Retention.Scope == spec.ScopeOutbox && c.Retention.Delivered.D() == time.Hour,
			"name %s, namespace %s, database %+v, retention %+v", c.Name, c.Namespace, c.Database, c.Retention)
		want := &spec.Auth{Type: spec.AuthBasic, SecretRef: &spec.SecretRef{Name: "webhook"}, UsernameFile: filepath.Join(dir, "secrets/webhook/username"), SecretFile: "env:WEBHOOK_PASSWORD"}
		got := c.Sink.HTTP.Auth
		need.That(t, reflect.DeepEqual(got, want), "auth %+v, want %+v", got, want)
		t.Setenv("DATABASE_URL", "postgres://owner@db/shop")
		c, err = Load(path, Options{Login: spec.LoginMigration, Secrets: "/keys"})
		need.That(t, err == nil && (c.Database.DSNFile == "/keys/owner/uri" || c.Database.DSNFile == "env:DATABASE_URL"), "the login of migrations: %+v, %v", c.Database, err)
	}
}

// Each refused object is refused with the API server's words, and with the place of each of them.
//
// CONTRACT: C-28, C-101
func TestLoadRefusesWithTheAPIServersWords(t *testing.T) {
	files, err := filepath.Glob("../../../api/v1alpha1/testdata/refused/*.yaml")
	need.OK(t, err)
	dir, tried := t.TempDir(), 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		need.OK(t, err)
		var parts []struct {
			Base    json.RawMessage
			Refused []struct {
				Name, Says string
				Patch      json.RawMessage
			}
		}
		need.OK(t, yaml.Unmarshal(text, &parts))
		for _, part := range parts {
			for _, r := range part.Refused {
				tried++
				object, err := jsonpatch.MergePatch(part.Base, r.Patch)
				need.OK(t, err)
				object, err = yaml.JSONToYAML(object)
				need.OK(t, err)
				_, err = Load(write(t, dir, "orders.yaml", string(object)), Options{})
				for _, words := range strings.Split(r.Says, "\n") {
					_, own, _ := strings.Cut(words, "strict decoding error: ") // the API server's own form
					if own == "" {
						own = words
					}
					if strings.HasPrefix(own, ".spec.replicas") { // of the scale, which says it again
						continue
					}
					need.That(t, err != nil && strings.Contains(err.Error(), own) && strings.HasPrefix(err.Error(), "line "), "%s: %v, want a line with %q", r.Name, err, own)
				}
			}
		}
	}
	need.That(t, tried >= 300, "only %d objects were tried", tried)
}

// What kubectl apply takes is what a process takes: each OutboxDispatcher of config/samples.
//
// CONTRACT: C-100
func TestLoadTakesEverySample(t *testing.T) {
	files, err := filepath.Glob("../../../config/samples/*.yaml")
	need.OK(t, err)
	tried := 0
	for _, file := range files {
		objects, err := read(file)
		need.Want(t, nil, "%s: %v", err, file)
		for _, o := range objects {
			if o.kind != "OutboxDispatcher" {
				continue
			}
			tried++
			c, err := Load(file, Options{Name: o.name})
			need.That(t, err == nil && c.Sink.Kind() != "" && c.Delivery.Lease != 0, "%s: %s: %v, want settings with a sink and the defaults", file, o.name, err)
		}
	}
	need.That(t, tried >= 20, "only %d samples were tried", tried)
}

func TestLoadSaysWhereAndWhatIsMeant(t *testing.T) {
	dir := t.TempDir()
	for want, text := range map[string]string{
		`line 9, column 25: unknown field "spec.sink.auth.secretref"; did you mean secretRef?`:                     strings.Replace(orders, "secretRef: {name: webhook}", "secretref: {name: webhook}", 1) + "---\n" + main,
		`line 16, column 15: unknown field "spec.migration.secretref"; did you mean secretRef?`:                    orders + "---\n" + strings.Replace(main, "{secretRef: {name: owner", "{secretref: {name: owner", 1),
		`spec.outboxRef.name: no Outbox named main is in `:                                                         orders,
		`line 1: no matches for kind "OutboxDispatch" in version "outbox.dev/v1alpha1"; correct it`:                strings.Replace(orders, "OutboxDispatcher", "OutboxDispatch", 1),
		`has several objects of kind OutboxDispatcher (orders, payments); choose one with --object`:                orders + "---\n" + strings.Replace(orders, "name: orders", "name: payments", 1) + "---\n" + main,
		`line 1: it is not an object; write apiVersion: outbox.dev/v1alpha1, kind: OutboxDispatcher, metadata and`: "namespace: shop\n",
		`has no OutboxDispatcher and no Outbox; write one of them there`:                                           "apiVersion: v1\nkind: Secret\n",
	} {
		_, err := Load(write(t, dir, "orders.yaml", text), Options{})
		need.That(t, err != nil && strings.Contains(err.Error(), want), "%v\nwant %s", err, want)
	}
}
