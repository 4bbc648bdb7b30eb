package manager_test

import (
	"testing"

	. "github.com/onsi/gomega"
	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/outbox-operator/outbox-operator/controllers/internal/operatortest"
)

// Whoever takes over the operator can read no Secret, and do nothing else with one: not in the whole cluster, not in
// a namespace that is served, not in its own.
//
// CONTRACT: C-103
func TestNoRightOnSecrets(t *testing.T) {
	g, admin := NewWithT(t), operatortest.Admin(t)
	operatortest.Granted(t)
	installNamespaced(t)
	may := func(account, verb, resource, namespace string) bool {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User:               account,
			Groups:             []string{"system:serviceaccounts", "system:authenticated"},
			ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: namespace, Verb: verb, Resource: resource},
		}}
		g.Expect(admin.Create(t.Context(), review)).To(Succeed())
		return review.Status.Allowed
	}
	for account, home := range map[string]string{operatortest.Account: "outbox-system", namespacedAccount: namespacedHome} {
		g.Expect(may(account, "list", "pods", "team-a")).To(BeTrue(), "%s has its rights", account)
		for _, verb := range []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "*"} {
			for _, namespace := range []string{"", "team-a", "team-c", home} { // "" asks for all of them
				g.Expect(may(account, verb, "secrets", namespace)).To(BeFalse(), "%s may %s secrets in %q", account, verb, namespace)
			}
		}
	}
}
