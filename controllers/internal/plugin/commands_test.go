package plugin_test

import (
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/outbox-operator/outbox-operator/controllers/internal/plugin"
	"github.com/outbox-operator/outbox-operator/hack/testing/commands"
)

func TestCommandsAndFlagsAreOnAPage(t *testing.T) {
	commands.Check(t, plugin.New("dev", genericiooptions.IOStreams{}, plugin.Options{}), "../../..", "controllers/cmd/kubectl-outbox/README.md")
}

func TestMisspeltCommandFails(t *testing.T) {
	for _, args := range [][]string{{"dead", "lst", "x"}, {"dead"}, {"statsu", "orders"}, {"events", "shwo", "--output=json"}} {
		cmd := plugin.New("dev", genericiooptions.IOStreams{}, plugin.Options{})
		cmd.SetArgs(args)
		if err := cmd.Execute(); err == nil {
			t.Errorf("%v succeeded", args)
		}
	}
}
