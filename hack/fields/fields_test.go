package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// The page of each kind has the fields of its spec, as the CRD has them.
// CONTRACT: C-100, C-104
func TestPagesHaveTheirFields(t *testing.T) {
	root := filepath.Join("..", "..")
	all, err := load(filepath.Join(root, "charts", "outbox-operator", "files", "crds"))
	need.OK(t, err)
	for kind := range all {
		page, err := os.ReadFile(filepath.Join(root, "api", "v1alpha1", strings.ToLower(kind)+".md"))
		need.OK(t, err)
		need.That(t, bytes.Contains(page, []byte("\n<!-- fields of "+kind+".spec ")), "the page of %s has no table of the fields of its spec", kind)
		if want, err := all.write(page); err != nil || !bytes.Equal(page, want) {
			t.Errorf("the table of %s is not what the CRD says: run 'make generate' (%v)", kind, err)
		}
	}
}

func TestWriteFillsTheTables(t *testing.T) {
	all, err := load(filepath.Join("..", "..", "charts", "outbox-operator", "files", "crds"))
	need.OK(t, err)
	page := func(path, rows string) string {
		return "Before.\n<!-- fields of " + path + " -->\n" + rows + "<!-- end of fields -->\nAfter.\n"
	}
	const head = "| field | default | meaning |\n|---|---|---|\n"
	for path, want := range map[string]string{
		"Outbox.spec.server": head +
			"| `host` | required | the host name, or several separated by commas. Of several the one that accepts writes is used, also after a failover. |\n" +
			"| `port` | `5432` | the port of each host. From 1 to 65535. |\n" +
			"| `database` | required | the name of the database. |\n",
		"OutboxConsumer.spec.dispatcherRefs": head + "| `name` | required | the OutboxDispatcher's name. |\n",
	} {
		if got, err := all.write([]byte(page(path, "old\n"))); err != nil || string(got) != page(path, want) {
			t.Errorf("%s: got %s, %v\nwant %s", path, got, err, page(path, want))
		}
	}
	for path, want := range map[string]string{"Outbox.spec.hosts": "Outbox has no field spec.hosts", "Inbox.spec": `"Inbox" is not a kind`} {
		if _, err := all.write([]byte(page(path, ""))); err == nil || err.Error() != want {
			t.Errorf("%s: error %v, want %s", path, err, want)
		}
	}
}
