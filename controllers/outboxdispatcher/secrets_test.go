package outboxdispatcher_test

import (
	"encoding/base64"
	"encoding/json"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kstatus "sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

var _ = Describe("security", Label("security"), func() {
	// What a Secret holds is in nothing that the controller writes: no object, status, condition or Event,
	// also while a key is missing. CONTRACT: C-73, C-101
	It("keeps what a Secret holds out of all that the controller writes", func() {
		const planted = "s3cr3t"
		c := start(tick)
		obd := c.dispatcher()
		others := &api.SecretRef{Name: "others"}
		obd.Spec.Sink = api.Sink{
			HTTP: &api.HTTPSink{URL: "https://warehouse.example.com/events", SigningSecretRef: &api.SecretRef{Name: "others", Key: "signing"}},
			Auth: &api.Auth{Type: api.AuthToken, SecretRef: &api.SecretRef{Name: "warehouse"}},
			TLS:  &api.TLS{CASecretRef: &api.SecretRef{Name: "others", Key: "ca"}, ClientCertSecretRef: others},
		}
		obd.Spec.Message.SchemaRegistry = &api.SchemaRegistry{URL: "https://registry.example.com", Auth: &api.Auth{Type: api.AuthBasic, SecretRef: others}}
		for _, name := range []string{"orders-db", "warehouse", "others"} {
			data := map[string]string{}
			for _, key := range []string{"dsn", "token", "signing", "ca", "tls.crt", "tls.key", "username", "password"} {
				data[key] = planted
			}
			c.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: c.namespace}, StringData: data})
		}
		c.create(obd)
		pod := c.pod("pod-a", corev1.PodStatus{Phase: corev1.PodPending})
		c.mountFails(pod, `MountVolume.SetUp failed for volume "secrets" : references non-existent secret key: token`)
		c.expect(kstatus.InProgressStatus, want{api.ReadyCondition, metav1.ConditionFalse, api.ReasonSecretKeyNotFound, "token"})
		Expect(c.admin.Delete(c.ctx, pod, client.GracePeriodSeconds(0))).To(Succeed())
		c.rollOut(c.healthy())
		c.expect(kstatus.CurrentStatus)

		for _, list := range []client.ObjectList{
			&api.OutboxDispatcherList{}, &appsv1.DeploymentList{}, &corev1.ConfigMapList{}, &corev1.ServiceList{}, &eventsv1.EventList{}, &corev1.EventList{},
		} {
			Expect(c.admin.List(c.ctx, list, client.InNamespace(c.namespace))).To(Succeed())
			text, err := json.Marshal(list)
			Expect(err).NotTo(HaveOccurred())
			Expect(string(text)).NotTo(Or(ContainSubstring(planted), ContainSubstring(base64.StdEncoding.EncodeToString([]byte(planted))[:7])),
				"%T shows what a Secret holds", list)
		}
	})

	// The API server enforces the restricted profile in the namespace, so the pods of rollOut prove the
	// dispatchers' template; a migration Job's pod is tried here.
	It("is that of the restricted profile", func() {
		c := start(tick)
		c.create(c.migrated())
		job := c.job()
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "migrate", Namespace: c.namespace}, Spec: *job.Spec.Template.Spec.DeepCopy()}
		pod.Spec.ServiceAccountName = ""
		c.create(pod)
		loose := pod.DeepCopy()
		loose.ObjectMeta = metav1.ObjectMeta{Name: "loose", Namespace: c.namespace}
		loose.Spec.Containers[0].SecurityContext.AllowPrivilegeEscalation = nil
		Expect(c.admin.Create(c.ctx, loose)).To(MatchError(ContainSubstring("PodSecurity")), "the profile is enforced")
		for _, template := range []corev1.PodTemplateSpec{job.Spec.Template, func() corev1.PodTemplateSpec {
			c.finish(job, time.Now(), "")
			return c.deployment().Spec.Template
		}()} {
			Expect(*template.Spec.AutomountServiceAccountToken).To(BeFalse())
		}
		Expect(*fetch(c, &corev1.ServiceAccount{}, "orders-dispatcher").AutomountServiceAccountToken).To(BeFalse())
		c.rollOut(c.healthy())
		c.expect(kstatus.CurrentStatus)
	})
})
