package desired

import (
	"errors"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
)

func TestPodTemplateErrors(t *testing.T) {
	for name, c := range map[string]struct{ template, want string }{
		"unknown scalar": {`{"spec":{"nodeName2":"x"}}`, "nodeName2"},
		"unknown object": {`{"spec":{"afinity":{"a":"b"}}}`, "afinity"},
		"unknown deep":   {`{"spec":{"containers":[{"name":"dispatcher","resource":{"limits":{"cpu":"1"}}}]}}`, "resource"},
		"wrong type":     {`{"spec":{"containers":"dispatcher"}}`, "containers"},
		"wrong quantity": {`{"spec":{"containers":[{"name":"dispatcher","resources":{"limits":{"cpu":"much"}}}]}}`, "quantities must match"},
		"our labels": {`{"metadata":{"labels":{"outbox.dev/managed-by":"x","outbox.dev/component":"x","outbox.dev/other":"x","app.kubernetes.io/name":"x"}}}`,
			"(outbox.dev/component, outbox.dev/managed-by)"},
		"without container": {`{"spec":{"containers":[{"name":"dispatcher","$patch":"delete"}]}}`, `removes the container "dispatcher"`},
		"too large":         {`{"metadata":{"annotations":{"a":"` + strings.Repeat("x", 64<<10) + `"}}}`, "has 65573 bytes of JSON, and 65536 are the most"},
		"long list":         {`{"spec":{"volumes":[{"name":"a"}` + strings.Repeat(`,{"name":"a"}`, 256) + `]}}`, "spec.volumes has 257 entries, and 256 are the most"},
		"long list, deep":   {`{"spec":{"containers":[{"name":"dispatcher","env":[{"name":"A"}` + strings.Repeat(`,{"name":"A"}`, 256) + `]}]}}`, "spec.containers[0].env has 257"},
		"account":           {`{"spec":{"serviceAccountName":"ci-admin"}}`, "in spec.pods.serviceAccount"},
		"our volume":        {`{"spec":{"volumes":[{"$retainKeys":["name","projected"],"name":"secrets","projected":{"sources":[{"serviceAccountToken":{"path":"sink/token"}}]}}]}}`, `the volume "secrets"`},
		"our volume goes":   {`{"spec":{"volumes":[{"name":"state","$patch":"delete"}]}}`, `the volume "state"`},
		"our mount":         {`{"spec":{"volumes":[{"name":"mine","emptyDir":{}}],"containers":[{"name":"dispatcher","volumeMounts":[{"name":"mine","mountPath":"/etc/outbox/secrets"}]}]}}`, "mounted at /etc/outbox/secrets"},
		"over our mounts":   {`{"spec":{"volumes":[{"name":"mine","emptyDir":{}}],"containers":[{"name":"dispatcher","volumeMounts":[{"name":"mine","mountPath":"/etc/outbox/secrets/sink"}]}]}}`, "a volume at /etc/outbox/secrets/sink"},
		"above our mounts":  {`{"spec":{"volumes":[{"name":"mine","emptyDir":{}}],"containers":[{"name":"dispatcher","volumeMounts":[{"name":"mine","mountPath":"/etc"}]}]}}`, "a volume at /etc"},
		"without metadata":  {`{"metadata":null}`, "(outbox.dev/component, outbox.dev/dispatcher, outbox.dev/managed-by)"},
	} {
		t.Run(name, func(t *testing.T) {
			obd := minimal()
			obd.Spec.Pods.Template = &runtime.RawExtension{Raw: []byte(c.template)}
			_, err := deployment(obd, nil, flags)
			if err == nil || !strings.Contains(err.Error(), c.want) || !errors.Is(err, ErrPodTemplate) || !strings.HasPrefix(err.Error(), "spec.pods.template cannot be used: ") {
				t.Errorf("error %v, want one about spec.pods.template with %q", err, c.want)
			}
		})
	}
}

// The recommended labels are a chart's, or whose you like. CONTRACT: C-100
func TestRecommendedLabelsAreDefaults(t *testing.T) {
	obd := minimal()
	obd.Spec.Pods.Template = &runtime.RawExtension{Raw: []byte(`{"metadata":{"labels":{
		"app.kubernetes.io/name":"shop","app.kubernetes.io/instance":"prod","app.kubernetes.io/managed-by":"Helm","helm.sh/chart":"shop-1.2.3"}}}`)}
	d, err := deployment(obd, nil, flags)
	if err != nil {
		t.Fatal(err)
	}
	labels := d.Spec.Template.Labels
	for key, want := range map[string]string{"app.kubernetes.io/name": "shop", "app.kubernetes.io/managed-by": "Helm", "helm.sh/chart": "shop-1.2.3",
		LabelDispatcher: "orders", LabelComponent: ComponentDispatcher, LabelManagedBy: Manager} {
		if labels[key] != want {
			t.Errorf("label %s is %q, want %q", key, labels[key], want)
		}
	}
	for key := range d.Spec.Selector.MatchLabels {
		if !strings.HasPrefix(key, "outbox.dev/") {
			t.Errorf("the selector has %s, which a template may change", key)
		}
	}
}
