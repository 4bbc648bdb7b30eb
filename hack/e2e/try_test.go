package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// A try on a kubelet: its pod mounts the files of both configurations, its exit code says whether they differ, and its
// log is the report. A missing Secret is reported while the pod waits.
var _ = It("tries a changed manifest on past events with kubectl outbox", Label("try"), func() {
	const orders = 20
	w := newWorld("try")
	secret := func(name string) string {
		return fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: %s, namespace: %s}\nstringData: {token: %s}\n", name, w.manifests.Namespace, name)
	}
	w.apply(secret("old-token") + "---\n" + secret("new-token"))
	with := func(sink, more string) string {
		url := fmt.Sprintf("http: {url: %q}", w.manifests.SinkURL)
		return strings.Replace(w.manifests.Dispatcher(), url, url+"\n    "+sink, 1) + more
	}
	running := with("auth: {type: Token, secretRef: {name: old-token}}", "")
	w.apply(running)
	w.must(w.dispatcher.WaitReady(w.ctx, 3*time.Minute))
	w.must(w.shop.GrantApp(w.ctx))
	w.plugin()
	w.produce(orders)
	Eventually(func() int64 { return w.number("select count(*) from outbox.outbox_events where status = 'delivered'") }).
		WithTimeout(2 * time.Minute).Should(BeEquivalentTo(orders))
	try := func(manifest string, more ...string) (out string, code int, stderr string) {
		w.Helper()
		file := filepath.Join(w.TempDir(), "orders.yaml")
		w.must(os.WriteFile(file, []byte(manifest), 0o600))
		out, err := cluster.Run(w.ctx, append([]string{"outbox", "try", "-f", file, "--namespace", w.manifests.Namespace}, more...)...)
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return out, exit.ExitCode(), err.Error()
		}
		w.must(err)
		return out, 0, ""
	}

	By("the same manifest makes no difference")
	out, code, stderr := try(running)
	Expect(code).To(BeZero(), stderr)
	Expect(out).To(And(HavePrefix("%d events of namespace shop", orders), MatchRegexp(`same +%d\n`, orders)))

	By("another Secret, and a rule that 5 of the events break")
	changed := with("auth: {type: Token, secretRef: {name: new-token}}",
		"  message: {validation: [{rules: [{rule: payload.total_cents >= 105.0, message: an order costs something}]}]}\n")
	out, code, stderr = try(changed, "--output", "json")
	Expect(code).To(Equal(3), stderr)
	Expect(stderr).To(ContainSubstring("5 of 20 events come out otherwise"))
	var report struct {
		Rows     int
		Outcomes map[string]int
	}
	w.must(json.Unmarshal([]byte(out), &report))
	Expect(report.Rows).To(Equal(orders))
	Expect(report.Outcomes).To(And(HaveKeyWithValue("dead", 5), HaveKeyWithValue("same", 15)))

	By("a Secret that is missing is named")
	_, code, stderr = try(strings.Replace(changed, "new-token", "no-token", 1), "--timeout", "15s")
	Expect(code).To(Equal(1))
	Expect(stderr).To(And(ContainSubstring("--timeout is over after 15s"), ContainSubstring(`"no-token" not found`)))

	By("nothing was sent or changed, and its objects are deleted")
	Expect(w.consumer.Deliveries()).To(HaveLen(orders))
	Expect(w.kubectl("get", "obd", "orders", "-o", "jsonpath={.metadata.generation} {.spec.message.validation}")).To(Equal("1 "))
	Eventually(func() string {
		return w.kubectl("get", "jobs,configmaps,pods", "-l", "outbox.dev/component=try", "-o", "name")
	}).WithTimeout(time.Minute).Should(BeEmpty())
})
