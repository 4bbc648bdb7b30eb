package manager_test

import (
	"context"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/outbox-operator/outbox-operator/controllers/internal/operatortest"
)

// homes are the namespaces of the two operators, by account.
var homes = map[string]string{operatortest.Account: "outbox-system", namespacedAccount: namespacedHome}

var _ = Describe("rights on Secrets", Label("rights", "security", "namespaced"), func() {
	// Whoever takes over the operator can read no Secret, and do nothing else with one: not in the whole cluster, not in
	// a namespace that is served, not in its own.
	//
	// CONTRACT: C-103
	It("are none", func(ctx SpecContext) {
		for account, home := range homes {
			Expect(may(ctx, account, "list", "", "pods", "team-a")).To(BeTrue(), "%s has its rights", account)
			for _, verb := range []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "*"} {
				for _, namespace := range []string{"", "team-a", "team-c", home} { // "" is all of them
					Expect(may(ctx, account, verb, "", "secrets", namespace)).To(BeFalse(), "%s may %s secrets in %q", account, verb, namespace)
				}
			}
		}
	})
})

// may reports whether the operator has a right.
func may(ctx context.Context, account, verb, group, resource, namespace string) bool {
	GinkgoHelper()
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User:               account,
		Groups:             []string{"system:serviceaccounts", "system:authenticated"},
		ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: namespace, Verb: verb, Group: group, Resource: resource},
	}}
	Expect(admin.Create(ctx, review)).To(Succeed())
	return review.Status.Allowed
}
