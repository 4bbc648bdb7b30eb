package manager_test

import (
	"context"
	"net/http"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/outbox-operator/outbox-operator/controllers/internal/manager"
	"github.com/outbox-operator/outbox-operator/controllers/internal/operatortest"
	"github.com/outbox-operator/outbox-operator/hack/testing/envtest"
)

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

var _ = Describe("/readyz", Label("rights"), func() {
	It("is not ok until the caches are filled", func(ctx SpecContext) {
		released := make(chan struct{})
		cfg := operatortest.Operator(GinkgoTB(), func(*http.Request, *http.Response) {})
		cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return roundTripper(func(req *http.Request) (*http.Response, error) {
				if strings.HasSuffix(req.URL.Path, "/outboxdispatchers") {
					<-released
				}
				return next.RoundTrip(req)
			})
		})
		probes := envtest.FreeAddress(GinkgoTB())
		running, cancel := context.WithCancel(ctx)
		mgr, err := manager.New(running, cfg, manager.Options{
			DispatcherImage: "outbox-operator:v1", ObserveInterval: 100 * time.Millisecond, MetricsAddress: "0", ProbeAddress: probes,
		})
		Expect(err).NotTo(HaveOccurred())
		ended := make(chan error, 1)
		go func() { ended <- mgr.Start(running) }()
		get := func(path string) int {
			resp, err := http.Get("http://" + probes + path) //nolint:noctx // a moment, in a test
			if err != nil {
				return 0
			}
			_ = resp.Body.Close()
			return resp.StatusCode
		}
		Eventually(get).WithArguments("/healthz").Should(Equal(http.StatusOK))
		Expect(get("/readyz")).To(Equal(http.StatusInternalServerError))
		close(released)
		Eventually(get).WithArguments("/readyz").Should(Equal(http.StatusOK))
		cancel()
		Expect(<-ended).To(Succeed())
	})
})
