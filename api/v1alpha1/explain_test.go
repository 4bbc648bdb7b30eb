package v1alpha1_test

import (
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/outbox-operator/outbox-operator/hack/testing/envtest"
)

// screen is the rows that fit a small terminal.
const screen = 41

// CONTRACT: C-100
var _ = Describe("kubectl explain", Label("explain"), func() {
	It("shows the fields of a dispatcher on one screen", func() {
		out, err := envtest.Kubectl(GinkgoTB(), "", "explain", "outboxdispatchers.spec")
		Expect(err).NotTo(HaveOccurred())
		Expect(strings.Count(strings.TrimRight(out, "\n"), "\n")+1).To(BeNumerically("<=", screen), out)
	})
})
