package v1alpha1_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// An object that the operator has not seen yet is not ready: kstatus takes one without a status for Current.
func TestFreshObjectsAreInProgress(t *testing.T) {
	c := newClient(t)
	for _, file := range []string{"../../config/samples/log.yaml", "../../config/samples/outbox.yaml"} {
		for _, obj := range objects(t, file) {
			t.Run(obj.GetKind(), func(t *testing.T) {
				obj.SetName("fresh-" + obj.GetName())
				if err := c.Create(t.Context(), obj); err != nil {
					t.Fatal(err)
				}
				made := &unstructured.Unstructured{}
				made.SetGroupVersionKind(obj.GroupVersionKind())
				if err := c.Get(t.Context(), client.ObjectKeyFromObject(obj), made); err != nil {
					t.Fatal(err)
				}
				for how, o := range map[string]*unstructured.Unstructured{"as it was made": obj, "as it is read": made} {
					got, err := status.Compute(o)
					if err != nil || got.Status != status.InProgressStatus {
						t.Errorf("%s: kstatus concludes %v (%v), want InProgress; status %v", how, got, err, o.Object["status"])
					}
				}
			})
		}
	}
}
