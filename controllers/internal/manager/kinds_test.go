package manager_test

import (
	"context"
	"net/http"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/manager"
	"github.com/outbox-operator/outbox-operator/controllers/internal/operatortest"
)

var _ = Describe("a definition that is missing", Label("rights"), Serial, func() {
	It("keeps that kind alone from being reconciled, until it is there", func(ctx SpecContext) {
		definition := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}}
		key := client.ObjectKey{Name: "outboxconsumers.outbox.dev"}
		Expect(admin.Get(ctx, key, definition)).To(Succeed())
		Expect(admin.Delete(ctx, definition.DeepCopy())).To(Succeed())
		serves := func() error { // by a client that remembers nothing
			_, err := operatortest.Admin(GinkgoTB()).RESTMapper().RESTMapping(v1alpha1.GroupVersion.WithKind("OutboxConsumer").GroupKind(), "v1alpha1")
			return err
		}
		Eventually(serves).ShouldNot(Succeed())
		restore := func(ctx context.Context) error {
			again := definition.DeepCopy()
			again.SetResourceVersion("")
			again.SetUID("")
			unstructured.RemoveNestedField(again.Object, "status")
			return client.IgnoreAlreadyExists(admin.Create(ctx, again))
		}
		DeferCleanup(func(ctx SpecContext) {
			Expect(restore(ctx)).To(Succeed())
			Eventually(serves).Should(Succeed())
		})

		running, cancel := context.WithCancel(ctx)
		defer cancel()
		mgr, err := manager.New(running, operatortest.Operator(GinkgoTB(), func(*http.Request, *http.Response) {}), manager.Options{
			DispatcherImage: "outbox-operator:v1", ObserveInterval: 100 * time.Millisecond, MetricsAddress: "0", ProbeAddress: "0",
		})
		Expect(err).NotTo(HaveOccurred())
		ended := make(chan error, 1)
		go func() { ended <- mgr.Start(running) }()
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
		Expect(admin.Create(ctx, namespace)).To(Succeed())
		for _, o := range orders(namespace.Name) {
			Expect(admin.Create(ctx, o)).To(Succeed())
		}
		Eventually(func() error {
			return admin.Get(ctx, client.ObjectKey{Namespace: namespace.Name, Name: "orders-dispatcher"}, &appsv1.Deployment{})
		}).Should(Succeed())
		Expect(ended).NotTo(Receive())

		Expect(restore(ctx)).To(Succeed())
		Eventually(ended).Should(Receive(MatchError(ContainSubstring("the definition of OutboxConsumer, which was missing, is there now"))))
	})
})
