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
