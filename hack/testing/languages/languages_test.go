package languages_test

import (
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/hack/testing/languages"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

func TestPythonRunsInstalledPackage(t *testing.T) {
	for range 2 { // the second finds what the first has installed
		cmd, err := languages.Python(t.Context(), []string{"psycopg[binary]==3.2.10"}, "-c", "import psycopg; print(psycopg.__version__)")
		need.Server(t, err, languages.ErrMissing)
		if out, err := cmd.CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != "3.2.10" {
			t.Errorf("%s, %v", out, err)
		}
	}
}
