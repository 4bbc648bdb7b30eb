package v1alpha1_test

import (
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/outbox-operator/outbox-operator/hack/testing/envtest"
)

func TestMain(m *testing.M) { envtest.Main(m) }

// Labels pick some of these specs: `go test ./api/v1alpha1 -ginkgo.label-filter=columns`.
func TestOnTheAPIServer(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "the kinds on an API server")
}
