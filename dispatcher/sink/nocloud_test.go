package sink_test

import (
	"os/exec"
	"regexp"
	"testing"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// A dispatcher without the SDKs of clouds imports none of them, and compiles.
func TestNocloudLeavesOutTheSDKs(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-tags", "nocloud", "../cmd/dispatcher").CombinedOutput()
	need.Must(t, err == nil, "go list: %v: %s", err, out)
	if sdk := regexp.MustCompile(`(?m)^(github\.com/(aws|Azure)|cloud\.google\.com|google\.golang\.org/api)/.*$`).FindString(string(out)); sdk != "" {
		t.Errorf("with the tag nocloud the dispatcher imports %s, want no SDK of a cloud", sdk)
	}
}
