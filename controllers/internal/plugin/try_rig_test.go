package plugin_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/controllers/internal/plugin"
)

const report = "31 events of namespace shop. Nothing was sent.\n\nsame  20\ndead  11\n"

// runs makes what the operator makes of the dispatcher in the cluster, and the Outbox that it refers to.
func (w *world) runs(ctx context.Context, change func(*v1alpha1.OutboxDispatcher)) {
	GinkgoHelper()
	outbox := &v1alpha1.Outbox{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "main"},
		Spec: v1alpha1.OutboxSpec{SecretRef: v1alpha1.SecretRef{Name: "db"}}}
	Expect(w.Create(ctx, outbox)).To(Succeed())
	var obd v1alpha1.OutboxDispatcher
	Expect(w.Get(ctx, client.ObjectKey{Namespace: w.namespace, Name: "orders"}, &obd)).To(Succeed())
	change(&obd)
	Expect(w.Update(ctx, &obd)).To(Succeed())
	deployment, err := desired.Deployment(&obd, outbox, desired.Platform{Image: "dispatcher:v1", ImagePullSecrets: []string{"pull"}})
	Expect(err).NotTo(HaveOccurred())
	Expect(w.Apply(ctx, deployment, client.FieldOwner(desired.Manager))).To(Succeed())
	Expect(w.Apply(ctx, desired.ConfigMap(&obd, outbox), client.FieldOwner(desired.Manager))).To(Succeed())
}

// made is what a try left in the cluster while it ran.
type made struct {
	job   batchv1.Job
	files corev1.ConfigMap
	done  <-chan struct{} // closed when both are known
}

// kubelet plays the Job controller and the kubelet once: the Job that appears has a pod with the status.
func (w *world) kubelet(status corev1.PodStatus) *made {
	var m made
	m.done = w.play(func(ctx context.Context) bool {
		var jobs batchv1.JobList
		if w.List(ctx, &jobs, client.InNamespace(w.namespace)) != nil || len(jobs.Items) == 0 {
			return false
		}
		job := jobs.Items[0]
		if w.Get(ctx, client.ObjectKeyFromObject(&job), &m.files) != nil {
			return false
		}
		m.job = job
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: job.Namespace, Name: job.Name + "-a", Labels: map[string]string{batchv1.JobNameLabel: job.Name}}, Spec: *job.Spec.Template.Spec.DeepCopy()}
		pod.Spec.ServiceAccountName = "" // there are no ServiceAccounts here
		if w.Create(ctx, pod) != nil {
			return false
		}
		pod.Status = status
		_ = w.Status().Update(ctx, pod)
		return true
	})
	return &m
}

// ends is the status of a pod whose dispatcher ended.
func ends(code int32) corev1.PodStatus {
	return dispatches(corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: "Error"}})
}

func dispatches(state corev1.ContainerState) corev1.PodStatus {
	return corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{Name: desired.Container, Image: "dispatcher:v1", State: state}}}
}

// leftovers are what is still there of a try.
func (w *world) leftovers(ctx context.Context) (names []string) {
	GinkgoHelper()
	var jobs batchv1.JobList
	var files corev1.ConfigMapList
	try := client.MatchingLabels{desired.LabelComponent: desired.ComponentTry}
	Expect(w.List(ctx, &jobs, client.InNamespace(w.namespace), try)).To(Succeed())
	Expect(w.List(ctx, &files, client.InNamespace(w.namespace), try)).To(Succeed())
	for _, job := range jobs.Items {
		if job.DeletionTimestamp.IsZero() {
			names = append(names, "Job "+job.Name)
		}
	}
	for _, m := range files.Items {
		names = append(names, "ConfigMap "+m.Name)
	}
	return names
}

// loaded is a file of the ConfigMap as the dispatcher loads it.
func loaded(text string) config.Config {
	GinkgoHelper()
	file := filepath.Join(GinkgoT().TempDir(), "config.yaml")
	Expect(os.WriteFile(file, []byte(text), 0o600)).To(Succeed())
	c, err := config.Load(file)
	Expect(err).NotTo(HaveOccurred())
	Expect(c.Validate()).To(Succeed())
	return c
}

func code(err error) int {
	var exit *plugin.ExitError
	if errors.As(err, &exit) {
		return exit.Code
	}
	return -1
}

// says makes an Event about the pod of the Job that appears, after one that means nothing and says that it is younger.
func (w *world) says(event corev1.Event) {
	w.play(func(ctx context.Context) bool {
		var all corev1.PodList
		if w.List(ctx, &all, client.InNamespace(w.namespace), client.HasLabels{batchv1.JobNameLabel}) != nil || len(all.Items) == 0 {
			return false
		}
		for i, e := range []corev1.Event{{Reason: "Scheduled", Message: "It is on a node."}, event} {
			e.ObjectMeta = metav1.ObjectMeta{Namespace: w.namespace, GenerateName: "try-"}
			e.InvolvedObject = corev1.ObjectReference{Kind: "Pod", Namespace: w.namespace, Name: all.Items[0].Name, UID: all.Items[0].UID}
			e.LastTimestamp = metav1.NewTime(noon.Add(-time.Duration(i) * time.Minute))
			_ = w.Create(ctx, &e)
		}
		return true
	})
}

// sources are what a projected volume is made of.
func sources(volumes []corev1.Volume, name string) (all []string) {
	for _, v := range volumes {
		if v.Name != name {
			continue
		}
		for _, from := range v.Projected.Sources {
			if s := from.Secret; s != nil {
				all = append(all, s.Name+":"+s.Items[0].Key+" -> "+s.Items[0].Path)
			} else {
				all = append(all, from.ConfigMap.Name+":"+from.ConfigMap.Items[0].Key+" -> "+from.ConfigMap.Items[0].Path)
			}
		}
	}
	return all
}
