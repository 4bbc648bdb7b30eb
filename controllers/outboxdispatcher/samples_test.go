package outboxdispatcher_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	kstatus "sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
)

// smallest is each kind of sink with what it cannot do without.
var smallest = []string{
	"http: {url: 'http://a.example'}",
	"kafka: {brokers: ['a:9092']}",
	"kafka: {brokers: ['a:9092']}, auth: {type: OAuthBearer, secretRef: {name: a, key: b}}, tls: {}",
	"log: {}",
	"nats: {servers: ['nats://a:4222']}",
	"postgres: {secretRef: {name: a}}",
	"pubSub: {project: shop-1}",
	"rabbitmq: {addresses: ['a:5672']}, auth: {type: Plain, secretRef: {name: a}}",
	"redis: {addresses: ['a:6379']}",
	"serviceBus: {namespace: a.example}",
	"sns: {topicARN: 'arn:aws:sns:eu-west-1:123456789012:orders'}",
	"sqs: {queueURL: 'https://sqs.eu-west-1.amazonaws.com/123456789012/orders'}",
}

var _ = Describe("a file for pods", Label("samples"), func() {
	files, err := filepath.Glob(filepath.Join("..", "..", "config", "samples", "*.yaml"))

	It("is tried with each kind of sink, and with samples", func() {
		for _, kind := range config.SinkKinds() {
			name, _, _ := strings.Cut(kind.Tag.Get("json"), ",")
			Expect(smallest).To(ContainElement(HavePrefix(name + ":")))
		}
		Expect(files, err).NotTo(BeEmpty())
	})

	for _, sink := range smallest {
		It("means the same as the smallest resource with "+sink, func(ctx SpecContext) {
			meansTheSame(ctx, "apiVersion: outbox.dev/v1alpha1\nkind: OutboxDispatcher\nmetadata: {name: smallest}\n"+
				"spec: {namespace: shop, database: {secretRef: {name: a}}, sink: {"+sink+"}}\n")
		})
	}
	for _, file := range files {
		It("means the same as the sample "+filepath.Base(file), func(ctx SpecContext) {
			text, err := os.ReadFile(file)
			Expect(err).NotTo(HaveOccurred())
			meansTheSame(ctx, string(text))
		})
	}

	// The binary's defaults are the API's.
	It("has the defaults of the API", func() {
		c := start(tick)
		c.create(c.dispatcher())
		rendered := c.loadConfig()
		least := config.Config{
			Name:      c.namespace + "/orders",
			Namespace: "shop",
			Database:  config.Database{DSNFile: "/etc/outbox/secrets/database/dsn"},
			Sink:      config.Sink{Log: &config.LogSink{}},
			Server:    config.Server{Address: ":8080"},
			StateFile: "/etc/outbox/state/state",
		}
		Expect(rendered).To(Equal(least), "what the API server sets is what the binary would")
		c.rollOut(c.healthy())
		c.expect(kstatus.CurrentStatus)
	})
})

// The API server and the dispatcher's file have the same defaults, and what the one accepts of a sample,
// or of the smallest resource, the other does not refuse: no pod ends at its start because of it.
//
// CONTRACT: C-100
func meansTheSame(ctx context.Context, text string) {
	GinkgoHelper()
	for _, written := range dispatchersIn(text) {
		accepted := written.DeepCopy()
		Expect(admin.Create(ctx, accepted, client.DryRunAll)).To(Succeed())
		Expect(rendered(accepted)).To(Equal(rendered(written)), "the defaults of the resource, and those of the file")
		Expect(loaded(accepted).Validate()).To(Succeed(), "the dispatcher refuses it")
	}
}

// dispatchersIn are those of a file, in the namespace default.
func dispatchersIn(text string) (all []*v1alpha1.OutboxDispatcher) {
	GinkgoHelper()
	for decoder := utilyaml.NewYAMLOrJSONDecoder(strings.NewReader(text), 4096); ; {
		obd := &v1alpha1.OutboxDispatcher{}
		err := decoder.Decode(obd)
		if errors.Is(err, io.EOF) {
			break
		}
		Expect(err).NotTo(HaveOccurred())
		if obd.Kind == "OutboxDispatcher" {
			obd.Namespace = metav1.NamespaceDefault
			all = append(all, obd)
		}
	}
	Expect(len(all) > 0 || strings.Contains(text, "\nkind: Outbox\n") || strings.Contains(text, "\nkind: DeadLetterReplay\n") ||
		strings.Contains(text, "\nkind: OutboxConsumer\n")).To(BeTrue(), "no OutboxDispatcher")
	return all
}

// loaded is the file of the pods as they load it, with a plain Outbox where one is named.
func loaded(obd *v1alpha1.OutboxDispatcher) config.Config {
	c := desired.Config(obd, &v1alpha1.Outbox{Spec: v1alpha1.OutboxSpec{SecretRef: v1alpha1.SecretRef{Name: "a"}}})
	c.ApplyDefaults()
	return c
}

// rendered is that as text.
func rendered(obd *v1alpha1.OutboxDispatcher) string {
	GinkgoHelper()
	text, err := yaml.Marshal(loaded(obd))
	Expect(err).NotTo(HaveOccurred())
	return string(text)
}
