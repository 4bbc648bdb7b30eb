// Command chart writes what the Helm chart and config/namespaced have from elsewhere: copies of the objects of
// config/, the roles of a watched namespace, the schema of the chart's values, the table of values in its page, and what
// Artifact Hub shows of the kinds.
//
// The templates take from the copies what both say: rules of roles, the container, ports, alerts. So a change in
// config/ is a change of the chart, by `make generate`, and `make verify` finds one that was forgotten. The CRDs are
// not copied: the chart has the files, and config/crd refers to them.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	if err := generate("."); err != nil {
		fmt.Fprintln(os.Stderr, "hack/chart:", err)
		os.Exit(1)
	}
}

// generate works on the checkout in root.
func generate(root string) error {
	config, chart := filepath.Join(root, "config"), filepath.Join(root, "charts", "outbox-operator")
	return errors.Join(
		copyObjects(config, filepath.Join(chart, "files")),
		watchedRoles(config),
		describeValues(chart),
		describeKinds(config, chart),
	)
}
