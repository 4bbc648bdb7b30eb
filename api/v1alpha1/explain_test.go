package v1alpha1_test

import (
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/outbox-operator/outbox-operator/hack/testing/envtest"
)

// screen is the rows that fit a small terminal.
const screen = 40

// CONTRACT: C-100
var _ = Describe("kubectl explain", Label("explain"), func() {
	It("shows the fields of a dispatcher on one screen", func() {
		var out string
		Eventually(func() (err error) { // the API server publishes the schema some time after it serves the kind
			out, err = envtest.Kubectl(GinkgoTB(), "", "explain", "outboxdispatchers.spec")
			return err
		}).WithTimeout(30 * time.Second).Should(Succeed())
		Expect(strings.Count(strings.TrimRight(out, "\n"), "\n")+1).To(BeNumerically("<=", screen), out)
	})
})
