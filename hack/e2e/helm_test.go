package e2e

import (
	"os"
	"os/exec"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/outbox-operator/outbox-operator/hack/e2e/scenario"
)

// A dispatcher delivers while a release is installed over kustomize's installation, upgraded, rolled back and
// uninstalled.
var _ = Describe("a Helm release", Label("helm"), Ordered, func() {
	const next = "outbox-operator:chart"
	var w *world

	BeforeAll(func() {
		w = newWorld("helm")
		w.ready()
		w.must(cluster.LoadImage(w.ctx, next))
		DeferCleanup(func(ctx SpecContext) {
			Expect(cluster.Install(ctx)).To(Succeed(), "install with kustomize again")
		})
		w.trickle()
		w.claiming()
	})

	It("is installed over kustomize's installation", func() {
		w.helm("install", "outbox-operator", "../../charts/outbox-operator", "--take-ownership", "--force-conflicts", "--set", "image.tag=dev", "--wait")
		w.claiming()
		w.expect("Ready", "True", "Delivering")
	})

	It("is upgraded, and its dispatchers with it", func() {
		w.helm("upgrade", "outbox-operator", "../../charts/outbox-operator", "--force-conflicts", "--set", "image.tag=chart", "--wait") // kubectl owns the image too
		w.dispatcherImage(next)
	})

	It("is rolled back, and its dispatchers with it", func() {
		w.helm("rollback", "outbox-operator", "1", "--force-conflicts", "--wait")
		w.dispatcherImage(scenario.Image)
	})

	It("is uninstalled, and keeps what people made", func() {
		w.helm("uninstall", "outbox-operator", "--wait")
		w.claiming()
		Expect(w.kubectl("get", "obd", "orders", "-o", "name")).To(ContainSubstring("orders"))
		Expect(w.number("select count(*) from outbox.outbox_dead_letters")).To(BeZero())
		Expect(w.number("select count(*) from outbox.outbox_events where live and created_at < now() - interval '30 seconds'")).To(BeZero(), "events that wait")
		w.noCrashes()
	})
})

// dispatcherImage waits until the dispatcher runs with the image, and delivers.
func (w *world) dispatcherImage(image string) {
	w.Helper()
	Eventually(func() string {
		return w.kubectl("get", "pods", "-l", "outbox.dev/dispatcher=orders,outbox.dev/component=dispatcher", "-o", "jsonpath={.items[*].spec.containers[0].image}")
	}).WithTimeout(3 * time.Minute).WithPolling(time.Second).Should(Equal(image))
	w.expect("Ready", "True", "Delivering")
	w.claiming()
}

// helm runs the helm that hack/pins/tool.sh pins; the first call of a machine builds it.
func (w *world) helm(args ...string) {
	w.Helper()
	path, err := exec.CommandContext(w.ctx, "../pins/tool.sh", "helm").Output()
	w.must(err)
	dir := w.TempDir()
	cmd := exec.CommandContext(w.ctx, strings.TrimSpace(string(path)), append(args, "--namespace", "outbox-system", "--kubeconfig", cluster.Kubeconfig)...)
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+dir, "HELM_CONFIG_HOME="+dir, "HELM_DATA_HOME="+dir, "NO_PROXY=*", "no_proxy=*")
	out, err := cmd.CombinedOutput()
	if err != nil {
		w.Fatalf("helm %s: %v: %s", strings.Join(args, " "), err, out)
	}
}
