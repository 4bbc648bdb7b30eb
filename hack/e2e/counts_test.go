package e2e

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"

	"github.com/outbox-operator/outbox-operator/hack/e2e/scenario"
)

// The dispatcher is paused, so that the counts do not change.
//
// CONTRACT: C-96 C-100
var _ = It("shows the right counts in its columns at any backlog", Label("counts"), func() {
	w := newWorld("counts")
	w.ready()
	w.patch(`{"spec":{"state":"Paused"}}`)
	w.expect("Ready", "True", "Paused")
	w.must(scenario.Until(w.ctx, "the pod that claims has stopped", func() (bool, string) {
		pods := w.kubectl("get", "pods", "-l", "outbox.dev/component=dispatcher", "-o", "name")
		return len(strings.Fields(pods)) == 1, pods
	}))

	have := 0
	for _, want := range []int{0, 100, 1_000_000} {
		w.exec(`insert into outbox.outbox_events (id, namespace, topic, payload)
			select gen_random_uuid(), 'shop', 'orders', '{}' from generate_series(1, $1)`, want-have)
		have = want
		started := time.Now()
		w.must(scenario.Until(w.ctx, fmt.Sprintf("%d pending", want), func() (bool, string) {
			columns, err := w.dispatcher.Columns(w.ctx)
			if err != nil {
				return false, err.Error()
			}
			pending, err := strconv.Atoi(strings.Fields(strings.Split(columns, "\n")[1])[3])
			tolerance := 0
			if want > 10_000 {
				tolerance = want / 20 // an estimate, and marked as one
			}
			return err == nil && pending >= want-tolerance && pending <= want+tolerance, columns
		}))
		columns, err := w.dispatcher.Columns(w.ctx)
		w.must(err)
		estimated := w.kubectl("get", "obd", "orders", "-o", "jsonpath={.status.estimated}")
		w.Logf("%d in SQL, seen after %.1f s (the interval is 10 s), estimated: %q\n%s", want, time.Since(started).Seconds(), estimated, columns)
		if (estimated == "true") != (want > 10_000) {
			w.Errorf("status.estimated is %q at %d pending", estimated, want)
		}
	}
})
