package v1alpha1_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kstatus "sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// kstatus takes an object without a status for Current.
var _ = Describe("an object that the operator has not seen", Label("status"), func() {
	for _, file := range []string{"../../config/samples/log.yaml", "../../config/samples/outbox.yaml", "../../config/samples/replay-group.yaml", "../../config/samples/consumer.yaml"} {
		for _, obj := range objects(file) {
			It("is in progress: "+obj.GetKind(), func(ctx SpecContext) {
				obj.SetName("fresh-" + obj.GetName())
				Expect(strict.Create(ctx, obj)).To(Succeed())
				read := &unstructured.Unstructured{}
				read.SetGroupVersionKind(obj.GroupVersionKind())
				Expect(strict.Get(ctx, client.ObjectKeyFromObject(obj), read)).To(Succeed())
				for _, o := range []*unstructured.Unstructured{obj, read} {
					result, err := kstatus.Compute(o)
					Expect(err).NotTo(HaveOccurred())
					Expect(result.Status).To(Equal(kstatus.InProgressStatus), "status %v", o.Object["status"])
				}
			})
		}
	}
})

// CONTRACT: C-42
var _ = Describe("a DeadLetterReplay", Label("refusal", "replay"), func() {
	It("cannot be changed, because its set is fixed", func(ctx SpecContext) {
		obj := objects("../../config/samples/replay-group.yaml")[0]
		obj.SetName("fixed")
		Expect(strict.Create(ctx, obj)).To(Succeed())
		for field, value := range map[string]any{"rate": int64(7), "reason": "CHG-813", "ttlAfterFinished": "1h"} {
			changed := obj.DeepCopy()
			Expect(unstructured.SetNestedField(changed.Object, value, "spec", field)).To(Succeed())
			Expect(complaints(strict.Update(ctx, changed))).To(ConsistOf(ContainSubstring("spec cannot be changed, because the set is fixed when the replay begins; delete the object")))
		}
		labelled := obj.DeepCopy()
		labelled.SetLabels(map[string]string{"team": "shop"})
		Expect(strict.Update(ctx, labelled)).To(Succeed())
	})
})
