package manager_test

import (
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/controllers/internal/operatortest"
	"github.com/outbox-operator/outbox-operator/hack/testing/envtest"
)

func TestMain(m *testing.M) { envtest.Main(m) }

// Labels pick some of these specs: `go test ./controllers/internal/manager -ginkgo.label-filter=namespaced`.
func TestOnTheAPIServer(t *testing.T) {
	ctrl.SetLogger(logr.Discard())
	SetDefaultEventuallyTimeout(time.Minute)
	SetDefaultEventuallyPollingInterval(20 * time.Millisecond)
	RegisterFailHandler(Fail)
	RunSpecs(t, "the operator's rights on an API server")
}

// admin may do everything, and reads from the API server.
var admin client.Client

// The API server needs a moment to apply roles that were just made; the operator sends no request before.
var _ = BeforeSuite(func(ctx SpecContext) {
	admin = operatortest.Admin(GinkgoTB())
	operatortest.Granted(GinkgoTB())
	installNamespaced(ctx)
	for account, namespaces := range map[string][]string{operatortest.Account: {"team-c"}, namespacedAccount: {"team-a", "team-b"}} {
		for _, namespace := range namespaces {
			Eventually(may).WithArguments(ctx, account, "list", "", "pods", namespace).Should(BeTrue(), "%s in %s", account, namespace)
		}
	}
	for account, home := range homes {
		Eventually(may).WithArguments(ctx, account, "create", "coordination.k8s.io", "leases", home).Should(BeTrue(), "%s in %s", account, home)
	}
})
