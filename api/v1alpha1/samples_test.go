package v1alpha1_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/hack/testing/envtest"
)

// strict refuses unknown fields, as kubectl does.
var strict client.Client

var _ = BeforeSuite(func() {
	c, err := client.New(envtest.Start(GinkgoTB()), client.Options{})
	Expect(err).NotTo(HaveOccurred())
	strict = client.WithFieldValidation(c, metav1.FieldValidationStrict)
})

var _ = Describe("a sample", Label("samples"), func() {
	// CONTRACT: C-100
	for _, file := range files("..", "..", "config", "samples") {
		It(filepath.Base(file)+" is accepted", func(ctx SpecContext) {
			for _, obj := range objects(file) {
				Expect(strict.Create(ctx, obj, client.DryRunAll)).To(Succeed(), "%s %s", obj.GetKind(), obj.GetName())
			}
		})
	}

	// All samples, of which http-everything.yaml sets every field. kubectl says "configured" of a change that it sends, also
	// when the API server then changes nothing.
	DescribeTable("is unchanged when it is applied again", func(ctx SpecContext, namespace string, flags ...string) {
		c, err := client.New(envtest.Start(GinkgoTB()), client.Options{})
		Expect(err).NotTo(HaveOccurred())
		Expect(c.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})).To(Succeed())
		apply := func() (said []string, versions map[string]string) {
			out, err := envtest.Kubectl(GinkgoTB(), "", append([]string{"apply", "--namespace", namespace, "--filename", "../../config/samples"}, flags...)...)
			Expect(err).NotTo(HaveOccurred())
			versions = map[string]string{}
			for kind := range crds {
				var list unstructured.UnstructuredList
				list.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind + "List"))
				Expect(c.List(ctx, &list, client.InNamespace(namespace))).To(Succeed())
				for _, o := range list.Items {
					versions[kind+"/"+o.GetName()] = o.GetResourceVersion()
				}
			}
			return strings.Split(out, "\n"), versions
		}
		apply()
		_, before := apply() // which stores the status that objects have by default, as the operator does at once
		said, after := apply()
		Expect(len(before)).To(BeNumerically(">", 40))
		Expect(after).To(Equal(before))
		for _, line := range said {
			Expect(line).NotTo(MatchRegexp(`\.outbox\.dev/.* (configured|created)$`))
		}
	},
		Entry("by the client", "applied"),
		Entry("by the API server", "applied-by-server", "--server-side"),
	)
})

// complaints are what the API server says about each field, sorted.
func complaints(err error) []string {
	var status *apierrors.StatusError
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &status) || status.ErrStatus.Details == nil || len(status.ErrStatus.Details.Causes) == 0:
		return []string{err.Error()}
	}
	var said []string
	for _, cause := range status.ErrStatus.Details.Causes {
		// After some errors the API server adds that it has not looked at everything yet.
		if !strings.Contains(cause.Message, "some validation rules were not checked") {
			said = append(said, strings.TrimPrefix(cause.Field+": "+cause.Message, "<nil>: "))
		}
	}
	slices.Sort(said)
	return said
}

// files are the YAML files of the directory.
func files(dir ...string) []string {
	files, err := filepath.Glob(filepath.Join(append(dir, "*.yaml")...))
	if err != nil || len(files) == 0 {
		panic(fmt.Sprintf("no files in %s: %v", filepath.Join(dir...), err))
	}
	return files
}

// objects are the file's objects, in the namespace default.
func objects(file string) []*unstructured.Unstructured {
	GinkgoHelper()
	f, err := os.Open(file)
	Expect(err).NotTo(HaveOccurred())
	defer f.Close()
	var objs []*unstructured.Unstructured
	for decoder := yaml.NewYAMLOrJSONDecoder(f, 4096); ; {
		obj := &unstructured.Unstructured{}
		err := decoder.Decode(obj)
		if errors.Is(err, io.EOF) {
			return objs
		}
		Expect(err).NotTo(HaveOccurred(), file)
		if len(obj.Object) != 0 {
			obj.SetNamespace("default")
			objs = append(objs, obj)
		}
	}
}

func TestMain(m *testing.M) { envtest.Main(m) }

// Labels pick some of these specs: `go test ./api/v1alpha1 -ginkgo.label-filter=columns`.
func TestOnTheAPIServer(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "the kinds on an API server")
}

// What a person sees, printed by kubectl itself.
//
// CONTRACT: C-100
var _ = Describe("kubectl get", Label("columns"), Ordered, ContinueOnFailure, func() {
	BeforeAll(func(ctx SpecContext) {
		scheme := runtime.NewScheme()
		for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, corev1.AddToScheme} {
			Expect(add(scheme)).To(Succeed())
		}
		c, err := client.New(envtest.Start(GinkgoTB()), client.Options{Scheme: scheme})
		Expect(err).NotTo(HaveOccurred())
		Expect(c.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "columns"}})).To(Succeed())

		createWithStatus(ctx, c, "fresh", nil, v1alpha1.OutboxDispatcherStatus{})
		createWithStatus(ctx, c, "idle", nil, v1alpha1.OutboxDispatcherStatus{
			Counts:   &status.Counts{},
			Replicas: 2, ReadyReplicas: 2, Pods: "2/2", Sink: "log",
			Conditions: ready(metav1.ConditionTrue, "Delivering", "Events are delivered."),
		})
		createWithStatus(ctx, c, "stuck", []string{"order.placed", "order.cancelled"}, v1alpha1.OutboxDispatcherStatus{
			Counts:       &status.Counts{Estimated: true, Pending: 1000000, Scheduled: 250, Processing: 16, Dead: 3, OldestPending: status.At(time.Now().Add(-30*time.Hour - 30*time.Minute))},
			BlockedKeys:  new(int64(2)),
			ObservedTime: new(metav1.NewTime(time.Now().Add(-14*time.Minute - 30*time.Second))), // the operator is down
			Replicas:     2, ReadyReplicas: 1, Pods: "1/2", Sink: "http",
			ETA: "never", LimitedBy: "Destination",
			Conditions: ready(metav1.ConditionFalse, "ConnectionFailed", "The sink refuses connections."),
		})

		createWithStatus(ctx, c, "paused", nil, v1alpha1.OutboxDispatcherStatus{
			Replicas: 1, ReadyReplicas: 1, Pods: "1/1", Sink: "log",
			Counts:     &status.Counts{Pending: 7, OldestPending: status.At(time.Now().Add(-30*time.Hour - 30*time.Minute))},
			Conditions: ready(metav1.ConditionTrue, "Paused", "Nothing is claimed."),
		})
		createConsumers(ctx, c)
	})

	DescribeTable("prints", func(args string, want []string) {
		out, err := envtest.Kubectl(GinkgoTB(), "", strings.Fields(args)...)
		Expect(err).NotTo(HaveOccurred())
		Expect(trailing.ReplaceAllString(age.ReplaceAllString(out, "AGE   "), "\n")).To(Equal(strings.Join(want, "\n") + "\n"))
	},
		Entry("the columns", "get obd --namespace columns", []string{
			"NAME     READY   REASON             PENDING   DEAD   OLDEST   ETA     ESTIMATED   PODS   AGE",
			"fresh                                                                                    AGE",
			"idle     True    Delivering         0         0                                   2/2    AGE",
			"paused   True    Paused             7         0      30h                          1/1    AGE",
			"stuck    False   ConnectionFailed   1000000   3      30h      never   true        1/2    AGE",
		}),
		Entry("more with --output wide", "get obd --namespace columns --output wide", []string{
			`NAME     READY   REASON             PENDING   DEAD   OLDEST   ETA     ESTIMATED   PODS   AGE   SINK   OUTBOX   TOPICS                               SCHEDULED   PROCESSING   BLOCKED   LIMITED BY    OBSERVED   MESSAGE`,
			`fresh                                                                                    AGE   orders`,
			`idle     True    Delivering         0         0                                   2/2    AGE   log    orders                                        0           0                                               Events are delivered.`,
			`paused   True    Paused             7         0      30h                          1/1    AGE   log    orders                                        0           0                                               Nothing is claimed.`,
			`stuck    False   ConnectionFailed   1000000   3      30h      never   true        1/2    AGE   http   orders   ["order.placed","order.cancelled"]   250         16           2         Destination   14m        The sink refuses connections.`,
		}),
		// CONTRACT: C-82
		Entry("consumers", "get oc --namespace columns", []string{
			`NAME      TYPES                          TEAM           VERIFIED           EVIDENCE      READY   AGE`,
			`billing   ["order.placed","payment.*"]   team-billing   11/13 2026-11-20   RulesBroken   True    AGE`,
			`fresh     ["*"]                          team-audit                                              AGE`,
		}),
		Entry("more of consumers with --output wide", "get oc --namespace columns --output wide", []string{
			`NAME      TYPES                          TEAM           VERIFIED           EVIDENCE      READY   AGE   ID                MECHANISM         RETENTION   MESSAGE`,
			`billing   ["order.placed","payment.*"]   team-billing   11/13 2026-11-20   RulesBroken   True    AGE   billing-service   ProcessedEvents   168h        All fits.`,
			`fresh     ["*"]                          team-audit                                              AGE   UniqueKey`,
		}),
	)
})

var (
	age      = regexp.MustCompile(`\b[0-9]{1,2}s\b *`) // of an object made a moment ago
	trailing = regexp.MustCompile(` *\n`)
)

func ready(status metav1.ConditionStatus, reason, message string) []metav1.Condition {
	return []metav1.Condition{{
		Type: v1alpha1.ReadyCondition, Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.Now(),
	}}
}

func createWithStatus(ctx context.Context, c client.Client, name string, topics []string, is v1alpha1.OutboxDispatcherStatus) {
	GinkgoHelper()
	obd := &v1alpha1.OutboxDispatcher{
		ObjectMeta: metav1.ObjectMeta{Namespace: "columns", Name: name},
		Spec: spec.Dispatcher{
			Namespace: "orders",
			Topics:    topics,
			Database:  &spec.DispatcherDatabase{SecretRef: spec.SecretRef{Name: "orders-db"}},
			Sink:      spec.Sink{Log: &spec.LogSink{}},
		},
	}
	Expect(c.Create(ctx, obd)).To(Succeed())
	if is.Sink == "" {
		return // as before the first pass of the operator
	}
	obd.Status = is
	Expect(c.Status().Update(ctx, obd)).To(Succeed())
}

// createConsumers makes one that was judged, and one as before the first pass of the operator.
func createConsumers(ctx context.Context, c client.Client) {
	GinkgoHelper()
	consumer := func(name string, spec v1alpha1.OutboxConsumerSpec) *v1alpha1.OutboxConsumer {
		o := &v1alpha1.OutboxConsumer{ObjectMeta: metav1.ObjectMeta{Namespace: "columns", Name: name}, Spec: spec}
		Expect(c.Create(ctx, o)).To(Succeed())
		return o
	}
	consumer("fresh", v1alpha1.OutboxConsumerSpec{EventTypes: []string{"*"}, OwnerTeam: "team-audit", IdempotencyMechanism: v1alpha1.IdempotencyUniqueKey})
	billing := consumer("billing", v1alpha1.OutboxConsumerSpec{
		ConsumerID: "billing-service", EventTypes: []string{"order.placed", "payment.*"}, OwnerTeam: "team-billing",
		IdempotencyMechanism: v1alpha1.IdempotencyProcessedEvents, Retention: spec.Duration(168 * time.Hour),
	})
	billing.Status = v1alpha1.OutboxConsumerStatus{
		ConsumerID: "billing-service", Verified: "11/13 2026-11-20",
		Conditions: append(ready(metav1.ConditionTrue, "Registered", "All fits."), metav1.Condition{
			Type: v1alpha1.VerifiedCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonRulesBroken, Message: "It breaks a rule.", LastTransitionTime: metav1.Now(),
		}),
	}
	Expect(c.Status().Update(ctx, billing)).To(Succeed())
}

// screen is the rows that fit a small terminal.
const screen = 43

// CONTRACT: C-100
var _ = Describe("kubectl explain", Label("explain"), func() {
	It("shows the fields of a dispatcher on one screen", func() {
		var out string
		Eventually(func() (err error) { // the API server publishes the schema some time after it serves the kind
			out, err = envtest.Kubectl(GinkgoTB(), "", "explain", "outboxdispatchers.spec")
			return err
		}).Should(Succeed())
		Expect(strings.Count(strings.TrimRight(out, "\n"), "\n")+1).To(BeNumerically("<=", screen), out)
	})
})
