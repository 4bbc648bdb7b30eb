package e2e

import (
	"encoding/json"
	"os"
	"os/exec"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters"
	"github.com/outbox-operator/outbox-operator/hack/e2e/scenario"
)

// The plugin as people have it: on the PATH, through the API server's port-forward, to a pod's loopback.
//
// CONTRACT: C-41
var _ = It("finds a dead event with kubectl outbox", Label("dead"), func() {
	w := newWorld("dead")
	w.ready()
	w.plugin()

	produced, err := scenario.Produce(w.ctx, w.shop.DSN(w.shop.App, "127.0.0.1", w.server.Port), scenario.Plan{Orders: 10, Writers: 1})
	w.must(err)
	w.expect("DeadLettersPresent", "True", "DeadLetters")

	id := produced.Poisoned.String()
	var groups deadletters.Groups
	w.must(json.Unmarshal([]byte(w.outbox("dead", "groups", "orders", "--output", "json")), &groups))
	Expect(groups.Groups).To(HaveLen(1))
	Expect(groups.Groups[0].Event).To(Equal(id))
	Expect(w.outbox("status", "orders")).To(ContainSubstring("kubectl outbox dead show orders " + id))
	Expect(w.outbox("dead", "show", "orders", id)).To(And(ContainSubstring("Resolution:    open"), Not(ContainSubstring("Payload:"))))
	Expect(w.outbox("dead", "show", "orders", id, "--payload")).To(ContainSubstring("Payload:"))
	Expect(w.outbox("events", "show", "orders", id)).To(ContainSubstring("max_retries_exceeded"))
	w.outbox("pause", "orders")
	w.expect("Ready", "True", "Paused")
	w.outbox("resume", "orders")
	w.expect("Ready", "True", "Delivering")
})

// plugin puts kubectl outbox on the PATH.
func (w *world) plugin() {
	w.Helper()
	bin := w.TempDir()
	build := exec.CommandContext(w.ctx, "../build.sh", bin+"/", "./controllers/cmd/kubectl-outbox")
	build.Stderr = GinkgoWriter
	w.must(build.Run())
	w.Setenv("PATH", bin+":"+os.Getenv("PATH"))
}

// outbox runs kubectl outbox in the world's namespace.
func (w *world) outbox(args ...string) string {
	w.Helper()
	out, err := cluster.Run(w.ctx, append(append([]string{"outbox"}, args...), "--namespace", w.manifests.Namespace)...)
	w.must(err)
	return out
}
