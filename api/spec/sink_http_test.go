package spec

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// The resource refuses the headers that the file refuses, and names them.
func TestReservedHeadersAreThoseOfTheResource(t *testing.T) {
	crd, err := os.ReadFile("../../charts/outbox-operator/files/crds/outbox.dev_outboxdispatchers.yaml")
	need.OK(t, err)
	text := strings.Join(strings.Fields(string(crd)), " ")
	rule := regexp.MustCompile(`self\.lowerAscii\(\) in \[('authorization'[^]]*)\]`).FindStringSubmatch(text)
	named := regexp.MustCompile(`none that the dispatcher sets itself \(ce-\*, ([^)]*)\)`).FindStringSubmatch(text)
	if rule == nil || named == nil {
		t.Fatal("the resource has no rule for the names of headers")
	}
	for what, list := range map[string]string{"the rule": strings.ReplaceAll(rule[1], "'", ""), "the message": named[1]} {
		need.WantAll(t, ReservedHeaders, "%s has %q, and ReservedHeaders %q", strings.Split(list, ", "), what)
	}
}
