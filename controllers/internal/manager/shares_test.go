package manager_test

import (
	"fmt"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/controllers/internal/manager"
	"github.com/outbox-operator/outbox-operator/controllers/internal/operatortest"
)

// What a tenant makes beyond the share of her namespace is left out, and the objects say so. A stop is applied there, and all elsewhere. CONTRACT: C-108
var _ = Describe("the share of a namespace", Label("security"), func() {
	const own = 6 // objects that have room
	var full, other client.Client
	var name string
	obd := func(i int) *v1alpha1.OutboxDispatcher {
		return &v1alpha1.OutboxDispatcher{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("orders-", i)}, Spec: spec.Dispatcher{
			Namespace: "shop", Database: &spec.DispatcherDatabase{SecretRef: spec.SecretRef{Name: "db"}}, Sink: spec.Sink{Log: &spec.LogSink{}}}}
	}
	labels := map[string]string{"outbox.dev/managed-by": "outbox-operator"}
	replicas := func(ctx SpecContext, in client.Client, i int) func() int32 {
		return func() int32 {
			d := &appsv1.Deployment{}
			if err := in.Get(ctx, client.ObjectKey{Name: obd(i).Name + "-dispatcher"}, d); err != nil {
				return -1
			}
			return *d.Spec.Replicas
		}
	}
	reasons := func(ctx SpecContext, i int) func() string {
		return func() string {
			o := obd(i)
			if err := full.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
				return err.Error()
			}
			var all []string
			for _, c := range []string{v1alpha1.ReadyCondition, v1alpha1.StalledCondition} {
				if c := meta.FindStatusCondition(o.Status.Conditions, c); c != nil {
					all = append(all, c.Type+"="+string(c.Status)+"/"+c.Reason)
				}
			}
			return strings.Join(all, " ")
		}
	}
	leftOut := func(kind string) func() string {
		return func() string {
			text, err := metrics.Registry.Gather()
			Expect(err).NotTo(HaveOccurred())
			for _, family := range text {
				for _, m := range family.Metric {
					if family.GetName() == "outbox_objects_left_out" && m.Label[0].GetValue() == kind && m.Label[1].GetValue() == name {
						return fmt.Sprint(m.Gauge.GetValue())
					}
				}
			}
			return "none"
		}
	}
	stop := func(ctx SpecContext, in client.Client, i int, n int32) {
		GinkgoHelper()
		o := obd(i)
		change(ctx, in, o, func() { o.Spec.Replicas = ptr.To(n) })
		Eventually(replicas(ctx, in, i)).Should(Equal(n))
	}
	const said = "Ready=Unknown/NamespaceFull Stalled=True/NamespaceFull"

	BeforeEach(func(ctx SpecContext) {
		for _, c := range []*client.Client{&full, &other} {
			namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "share-"}}
			Expect(admin.Create(ctx, namespace)).To(Succeed())
			*c = client.NewNamespacedClient(admin, namespace.Name)
			if c == &full {
				name = namespace.Name
			}
		}
	})

	It("bounds objects with the operator's label", func(ctx SpecContext) {
		operate(ctx, operatortest.Operator(GinkgoTB(), unseen), manager.Options{NamespaceShare: 3 * own * 8 << 10})
		Expect(full.Create(ctx, obd(0))).To(Succeed())
		Expect(other.Create(ctx, obd(0))).To(Succeed())
		Eventually(replicas(ctx, full, 0)).Should(Equal(int32(1)))
		Eventually(replicas(ctx, other, 0)).Should(Equal(int32(1)))
		var made []client.Object
		for i := range 300 {
			m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("eve-", i), Labels: labels}}
			Expect(full.Create(ctx, m)).To(Succeed())
			made = append(made, m)
		}
		Eventually(leftOut("ConfigMap")).ShouldNot(Equal("none"))
		Eventually(func(g Gomega) {
			o := obd(0)
			g.Expect(full.Get(ctx, client.ObjectKeyFromObject(o), o)).To(Succeed())
			o.Spec.Delivery.BatchSize++
			g.Expect(full.Update(ctx, o)).To(Succeed())
			g.Expect(reasons(ctx, 0)()).To(Equal(said))
		}).Should(Succeed())
		stop(ctx, full, 0, 0)
		stop(ctx, other, 0, 0)
		stop(ctx, other, 0, 2)
		for _, m := range made {
			Expect(full.Delete(ctx, m)).To(Succeed())
		}
		Eventually(leftOut("ConfigMap")).Should(Equal("none"))
		stop(ctx, full, 0, 2)
		Eventually(reasons(ctx, 0)).ShouldNot(ContainSubstring("NamespaceFull"))
	})

	// A manager that begins hears of eve's objects first, and has no room for those that it has made itself.
	It("lets a stop be applied whose objects are left out", func(ctx SpecContext) {
		operator := func(share int64) (end func()) {
			_, end = operate(ctx, operatortest.Operator(GinkgoTB(), unseen), manager.Options{NamespaceShare: share})
			return end
		}
		end := operator(0)
		o := obd(0)
		Expect(full.Create(ctx, o)).To(Succeed())
		Eventually(replicas(ctx, full, 0)).Should(Equal(int32(1)))
		end()
		for i := range 60 {
			meta := metav1.ObjectMeta{Name: fmt.Sprint("eve-", i), Labels: labels}
			Expect(full.Create(ctx, &corev1.ConfigMap{ObjectMeta: meta})).To(Succeed())
			Expect(full.Create(ctx, &appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: labels},
				Template: corev1.PodTemplateSpec{ObjectMeta: meta, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "eve", Image: "eve"}}}}}})).To(Succeed())
		}
		operator(3 * 8 << 10)
		stop(ctx, full, 0, 0)
		change(ctx, full, o, func() { o.Spec.State = spec.Paused })
		Eventually(func() spec.State {
			m := &corev1.ConfigMap{}
			Expect(full.Get(ctx, client.ObjectKey{Name: *desired.StateConfigMap(o).Name}, m)).To(Succeed())
			return desired.State(m)
		}).Should(Equal(spec.Paused))
		Eventually(leftOut("Deployment")).ShouldNot(Equal("none"))
	})

	It("bounds objects of the operator's kinds", func(ctx SpecContext) {
		operate(ctx, operatortest.Operator(GinkgoTB(), unseen), manager.Options{NamespaceShare: 3 * own * 8 << 10})
		for i := range own + 3 {
			Expect(full.Create(ctx, obd(i))).To(Succeed())
		}
		for i := range 3 {
			Eventually(reasons(ctx, own+i)).Should(Equal(said))
		}
		Eventually(leftOut("OutboxDispatcher")).Should(Equal("3"))
		Expect(replicas(ctx, full, own)()).To(Equal(int32(-1)))
		Expect(other.Create(ctx, obd(0))).To(Succeed())
		Eventually(replicas(ctx, other, 0)).Should(Equal(int32(1)))
		stop(ctx, full, 0, 0)

		Expect(full.Delete(ctx, obd(1))).To(Succeed())
		stop(ctx, full, own, 2) // an edit, and it has room
		Eventually(leftOut("OutboxDispatcher")).Should(Equal("2"))
		Eventually(reasons(ctx, own)).ShouldNot(ContainSubstring("NamespaceFull"))
	})
})
