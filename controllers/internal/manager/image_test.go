package manager_test

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/controllers/internal/manager"
	"github.com/outbox-operator/outbox-operator/hack/testing/envtest"
)

const managerImage = "registry.example.com/outbox-operator:v1"

// managerPod makes the manager's own pod, with a proxy before the manager, as a mesh puts one there.
func managerPod(ctx context.Context, namespace string) client.ObjectKey {
	GinkgoHelper()
	restricted := &corev1.SecurityContext{
		RunAsNonRoot: ptr.To(true), AllowPrivilegeEscalation: ptr.To(false),
		Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "outbox-operator-", Namespace: namespace},
		Spec: corev1.PodSpec{Containers: []corev1.Container{
			{Name: "proxy", Image: "proxy:v1", SecurityContext: restricted},
			{Name: "manager", Image: managerImage, SecurityContext: restricted},
		}},
	}
	Expect(admin.Create(ctx, pod)).To(Succeed())
	return client.ObjectKeyFromObject(pod)
}

var _ = Describe("the manager's own image", Label("rights"), func() {
	DescribeTable("is needed when no other is set", func(ctx SpecContext, pod, want string) {
		other := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "other-", Namespace: "team-a"},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "other", Image: "other"}}},
		}
		Expect(admin.Create(ctx, other)).To(Succeed())
		if pod == "other" {
			pod = other.Name
		}
		_, err := manager.New(ctx, envtest.Start(GinkgoTB()), manager.Options{Pod: client.ObjectKey{Namespace: "team-a", Name: pod}, ObserveInterval: time.Second, MetricsAddress: "0", ProbeAddress: "0"})
		Expect(err).To(MatchError(And(ContainSubstring(want), ContainSubstring("set --dispatcher-image, or POD_NAME"))))
	},
		Entry("and the pod is not there", "none", `"none" not found`),
		Entry("and the pod has another container", "other", `no container "manager"`),
		Entry("and the pod's name is not known", "", "POD_NAME"),
	)
})
