package e2e

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// Delivery continues without the operator and without the API server, and the status says what is not observed.
//
// CONTRACT: C-101
var _ = Describe("while the operator is in trouble", Label("operator"), Ordered, func() {
	var w *world

	BeforeAll(func() {
		w = newWorld("operator")
		w.ready()
		w.trickle()
		w.claiming()
	})

	It("another manager takes over when the leader is killed", func() {
		leader := w.leader()
		w.must(cluster.Signal(w.ctx, w.pidOf(leader), syscall.SIGKILL))
		w.claiming()
		w.patch(`{"spec":{"replicas":2}}`)
		Eventually(w.replicas).WithTimeout(time.Minute).WithPolling(time.Second).Should(Equal("2"), "the next leader applies the change")
		w.expect("Ready", "True", "Delivering")
	})

	It("recovers when the API server is killed", func() {
		pid := apiServer()
		if pid == 0 {
			Skip("this cluster's API server does not run on this machine")
		}
		w.must(syscall.Kill(pid, syscall.SIGKILL))
		w.claiming() // reads the database alone
		Eventually(func() error { _, err := cluster.Run(w.ctx, "get", "--raw", "/readyz"); return err }).
			WithTimeout(2 * time.Minute).WithPolling(time.Second).Should(Succeed())
		w.patch(`{"spec":{"replicas":1}}`)
		Eventually(w.replicas).WithTimeout(2 * time.Minute).WithPolling(time.Second).Should(Equal("1"))
		w.expect("Ready", "True", "Delivering")
	})

	It("reports NotObserved when its pod is unreachable, and delivery continues", func() {
		var ips []string // of one pod: the spec above removed the other
		Eventually(func() []string {
			ips = strings.Fields(w.kubectl("get", "pods", "-l", "outbox.dev/dispatcher=orders,outbox.dev/component=dispatcher", "-o", "jsonpath={.items[*].status.podIP}"))
			return ips
		}).WithTimeout(2 * time.Minute).WithPolling(time.Second).Should(HaveLen(1))
		netns := "/proc/" + strconv.Itoa(w.pidOf(w.leader())) + "/ns/net"
		route := func(verb string) {
			_, err := cluster.OnNode(w.ctx, "nsenter", "--net="+netns, "ip", "route", verb, "blackhole", ips[0]+"/32")
			w.must(err)
		}
		route("add")
		c := w.expectWithin(3*time.Minute, "Ready", "Unknown", "NotObserved")
		Expect(c.Message).To(ContainSubstring("NetworkPolicy"))
		w.claiming()
		route("del")
		w.expectWithin(3*time.Minute, "Ready", "True", "Delivering")
	})
})

// replicas are those of the dispatcher's Deployment.
func (w *world) replicas() string {
	w.Helper()
	return w.kubectl("get", "deployment", "orders-dispatcher", "-o", "jsonpath={.spec.replicas}")
}

// leader is the pod of the manager that leads.
func (w *world) leader() string {
	w.Helper()
	holder, err := cluster.Run(w.ctx, "-n", "outbox-system", "get", "leases", "-o", "jsonpath={.items[0].spec.holderIdentity}")
	w.must(err)
	pod, _, _ := strings.Cut(holder, "_")
	return pod
}

// pidOf is the process of a manager.
func (w *world) pidOf(pod string) int {
	w.Helper()
	pid, err := cluster.PID(w.ctx, "outbox-system", pod, "manager")
	w.must(err)
	return pid
}

// apiServer is the process of the cluster's API server, 0 where it does not run on this machine.
func apiServer() int {
	network := cluster.HostIP[:strings.LastIndex(cluster.HostIP, ".")+1] // only this cluster uses it
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	Expect(err).NotTo(HaveOccurred())
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // a process that just ended
		}
		args := strings.Split(string(text), "\x00")
		if filepath.Base(args[0]) == "kube-apiserver" && strings.Contains(string(text), "--advertise-address\x00"+network) {
			pid, err := strconv.Atoi(strings.Split(file, "/")[2])
			Expect(err).NotTo(HaveOccurred())
			return pid
		}
	}
	return 0
}
