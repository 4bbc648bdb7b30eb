package desired

import (
	"testing"

	"sigs.k8s.io/yaml"
)

func TestNetworkPolicyGolden(t *testing.T) {
	b, err := yaml.Marshal(NetworkPolicy(minimal(), "outbox-system"))
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "networkpolicy.yaml", string(b))
}
