package v1alpha1_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// kstatus takes an object without a status for Current.
var _ = Describe("an object that the operator has not seen", Label("status"), func() {
	for _, file := range []string{"../../config/samples/log.yaml", "../../config/samples/outbox.yaml"} {
		for _, obj := range objects(file) {
			It("is in progress: "+obj.GetKind(), func(ctx SpecContext) {
				obj.SetName("fresh-" + obj.GetName())
				Expect(strict.Create(ctx, obj)).To(Succeed())
				read := &unstructured.Unstructured{}
				read.SetGroupVersionKind(obj.GroupVersionKind())
				Expect(strict.Get(ctx, client.ObjectKeyFromObject(obj), read)).To(Succeed())
				for _, o := range []*unstructured.Unstructured{obj, read} {
					result, err := status.Compute(o)
					Expect(err).NotTo(HaveOccurred())
					Expect(result.Status).To(Equal(status.InProgressStatus), "status %v", o.Object["status"])
				}
			})
		}
	}
})
