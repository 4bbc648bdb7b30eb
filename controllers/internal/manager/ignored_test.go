package manager_test

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/controllers/internal/manager"
	"github.com/outbox-operator/outbox-operator/controllers/internal/operatortest"
)

var _ = Describe("an operator of the whole cluster", Label("namespaced"), func() {
	// It leaves to other operators what they serve, and hears nothing of it. CONTRACT: C-106
	It("leaves out the namespaces that it is to ignore", func(ctx SpecContext) {
		var mu sync.Mutex
		var others []string
		running, cancel := context.WithCancel(ctx)
		mgr, err := manager.New(running, operatortest.Operator(GinkgoTB(), func(req *http.Request, _ *http.Response) {
			mu.Lock()
			defer mu.Unlock()
			if strings.Contains(req.URL.Path, "/namespaces/ignored") {
				others = append(others, req.Method+" "+req.URL.Path)
			}
		}), manager.Options{
			DispatcherImage: "outbox-operator:v1", ObserveInterval: 100 * time.Millisecond, IgnoreNamespaces: []string{"ignored", "ignored-too"},
			MetricsAddress: "0", ProbeAddress: "0",
		})
		Expect(err).NotTo(HaveOccurred())
		ended := make(chan error, 1)
		go func() { ended <- mgr.Start(running) }()
		for _, name := range []string{"ignored", "ignored-too", "served"} { // the last one last
			Expect(admin.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})).To(Succeed())
			for _, o := range orders(name) {
				Expect(admin.Create(ctx, o)).To(Succeed())
			}
		}
		deployment := func(namespace string) error {
			return admin.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "orders-dispatcher"}, &appsv1.Deployment{})
		}
		Eventually(func() error { return deployment("served") }).Should(Succeed())
		cancel()
		Expect(<-ended).To(Succeed())
		Expect(apierrors.IsNotFound(deployment("ignored"))).To(BeTrue())
		Expect(apierrors.IsNotFound(deployment("ignored-too"))).To(BeTrue())
		Expect(others).To(BeEmpty())
	})
})
