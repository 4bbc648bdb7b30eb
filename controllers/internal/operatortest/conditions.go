package operatortest

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// CheckConditions fails the test unless all conditions of want, each as Type=Status/Reason, are among got, and none of
// the types of absent. Each condition of got needs a message.
func CheckConditions(t testing.TB, got []metav1.Condition, want, absent []string) {
	t.Helper()
	for _, one := range want {
		if !slices.ContainsFunc(got, func(c metav1.Condition) bool { return c.Type+"="+string(c.Status)+"/"+c.Reason == one }) {
			t.Errorf("want %s in %+v", one, got)
		}
	}
	for _, one := range absent {
		if meta.FindStatusCondition(got, one) != nil {
			t.Errorf("want no %s in %+v", one, got)
		}
	}
	for _, c := range got {
		if c.Message == "" {
			t.Errorf("%s=%s/%s has no message", c.Type, c.Status, c.Reason)
		}
	}
}
