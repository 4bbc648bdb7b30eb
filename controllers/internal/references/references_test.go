package references

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outbox-operator/outbox-operator/api/spec"
	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// CONTRACT: C-103
func TestMissingReferencesAreNamed(t *testing.T) {
	obd := &api.OutboxDispatcher{ObjectMeta: metav1.ObjectMeta{Name: "orders", Namespace: "shop"}, Spec: spec.Dispatcher{
		Database: &spec.DispatcherDatabase{SecretRef: spec.SecretRef{Name: "orders-db"}, MigrationSecretRef: &spec.SecretRef{Name: "orders-owner"}},
	}}
	for words, want := range map[string]string{
		"":                               "",
		"timed out waiting for the node": "",
		`MountVolume.SetUp failed for volume "secrets" : secret "orders-db" not found`: `SecretNotFound: Secret "orders-db", which spec.database.secretRef names, does not exist in namespace "shop"; create it`,
		`configmap "mine" not found`:                                                 `ConfigMapNotFound: ConfigMap "mine", which the pod template names, does not exist`,
		"references non-existent secret key: dsn":                                    `SecretKeyNotFound: One of these has no key "dsn": Secret "orders-db", which spec.database.secretRef names; Secret "orders-owner", which spec.database.migrationSecretRef names; add the key`,
		"references non-existent secret key: elsewhere":                              "",
		"couldn't find key token in Secret shop/mine":                                `SecretKeyNotFound: Secret "mine", which the pod template names, has no key "token"`,
		"couldn't find key url in ConfigMap shop/settings":                           `ConfigMapKeyNotFound: ConfigMap "settings", which the pod template names, has no key "url"`,
		`[references non-existent secret key: dsn, secret "orders-owner" not found]`: `SecretNotFound: Secret "orders-owner", which spec.database.migrationSecretRef names`,
	} {
		got := ""
		if p := missing(Of(obd, nil), "shop", words); p != nil {
			got = p.Error()
		}
		need.That(t, strings.HasPrefix(got, want) && (want == "") == (got == ""), "%s: %s\nwant %s", words, got, want)
	}
}

// said has one Event about the files of every pod.
type said string

func (s said) FailedMount(*corev1.Pod) corev1.Event { return corev1.Event{Message: string(s)} }

// A pod that is about to go waits for what a new pod may not need any more.
func TestPodsThatGoMissNothing(t *testing.T) {
	waits := corev1.Pod{Spec: corev1.PodSpec{NodeName: "node"}, Status: corev1.PodStatus{Phase: corev1.PodPending}}
	goes := *waits.DeepCopy()
	goes.DeletionTimestamp = &metav1.Time{}
	for want, pods := range map[bool][]corev1.Pod{true: {goes, waits}, false: {goes}} {
		p := Missing(said(`secret "db" not found`), nil, pods)
		need.That(t, (p != nil) == want, "%d pods: %v", len(pods), p)
	}
}
