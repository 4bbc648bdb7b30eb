package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/hack/e2e/scenario"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// All at once, on a first install: each is named by its cause, no sentence says what is not so, and each ends by itself when its
// cause does. The log has how long that took.
//
// CONTRACT: C-101 C-102 C-103
var _ = It("names each trouble of a first install by its cause", Label("troubles"), func() {
	w := newWorld("first")
	down := newConsumer(w)
	down.close()
	tlsURL, rightCA, wrongCA := tlsConsumer(w, w.consumer.Consumer)
	rows := scenario.Troubles(w.manifests.SinkURL, tlsURL, rightCA, wrongCA, down.url())
	worlds := map[string]*world{}
	for _, r := range rows {
		one := w.another(r)
		worlds[r.Name] = one
		wrong := one.manifests
		if r.Name == "owner" { // a login without rights
			wrong.OwnerDSN = one.shop.DSN(one.shop.App, cluster.HostIP, w.server.Port)
		}
		if one.apply(r.Secrets(wrong)); r.Also != "" {
			one.create(r.Also)
		}
	}
	began := time.Now()
	for _, r := range rows {
		w.apply(r.Dispatcher(worlds[r.Name].manifests))
	}
	knew, named, recovered, untrue := map[string]time.Duration{}, map[string]time.Duration{}, map[string]time.Duration{}, map[string]bool{}
	defer func() {
		for _, r := range rows {
			w.Logf("%-12s %-20s known after %3.0f s, named after %3.0f s, recovered after %3.0f s", r.Name, r.Reason, knew[r.Name].Seconds(), named[r.Name].Seconds(), recovered[r.Name].Seconds())
		}
	}()
	// until looks until all rows are as wanted, and says when each was.
	until := func(what string, since time.Time, when map[string]time.Duration, wanted func(scenario.Trouble, scenario.Seen) bool) error {
		ctx, cancel := context.WithTimeout(w.ctx, need.Wait)
		defer cancel()
		return scenario.Until(ctx, what, func() (bool, string) {
			all, err := cluster.Look(ctx)
			if err != nil {
				return false, err.Error()
			}
			left := ""
			for _, r := range rows {
				of := *all[worlds[r.Name].manifests.Namespace]
				if _, done := when[r.Name]; !done && wanted(r, of) {
					when[r.Name] = time.Since(since)
				} else if !done {
					left += fmt.Sprintf("%s: %+v\n", r.Name, meta.FindStatusCondition(of.Conditions, v1alpha1.ReadyCondition))
				}
			}
			return left == "", left
		})
	}
	unnamed := until("each is named", began, named, func(r scenario.Trouble, of scenario.Seen) bool {
		for _, c := range of.Conditions {
			for _, words := range []string{"Job runs", "mesh lets", "are delivered"} {
				if strings.Contains(c.Message, words) {
					untrue[fmt.Sprintf("%s: %s %s: %s", r.Name, c.Type, c.Reason, c.Message)] = true
				}
			}
		}
		if _, known := knew[r.Name]; !known && r.Known(of) {
			knew[r.Name] = time.Since(began)
		}
		return r.Named(of)
	})
	fixed := time.Now()
	for _, r := range rows {
		switch one := worlds[r.Name]; {
		case r.Patch != "":
			one.patch(r.Patch)
		case r.Kubectl != nil:
			one.kubectl(r.Kubectl...)
		case r.Apply != "":
			one.create(r.Apply)
		case r.Name == "sink":
			down.open()
		default:
			one.apply(one.manifests.Secrets())
		}
	}
	lasting := until("each has ended", fixed, recovered, func(_ scenario.Trouble, of scenario.Seen) bool {
		return meta.IsStatusConditionTrue(of.Conditions, v1alpha1.ReadyCondition)
	})
	w.must(errors.Join(unnamed, lasting))
	Expect(untrue).To(BeEmpty(), "what was not so")
})

// another is a world with a namespace and a database of its own, and the same servers.
func (w *world) another(of scenario.Trouble) *world {
	w.Helper()
	one := *w
	var err error
	one.shop, err = scenario.NewShop(w.ctx, of.Database(), w.server.DSN)
	w.must(err)
	one.manifests.Namespace = "e2e-first-" + of.Name
	one.manifests.DispatcherDSN = one.shop.DSN(one.shop.Dispatcher, cluster.HostIP, w.server.Port)
	one.manifests.OwnerDSN = one.shop.DSN(one.shop.Owner, cluster.HostIP, w.server.Port)
	one.dispatcher = &scenario.Dispatcher{Cluster: cluster, Namespace: one.manifests.Namespace, Name: "orders"}
	w.Cleanup(func() {
		_, _ = cluster.Run(context.Background(), "delete", "namespace", one.manifests.Namespace, "--wait=false")
	})
	return &one
}

// create applies manifests in the world's namespace.
func (w *world) create(manifests string) {
	w.Helper()
	w.apply(strings.ReplaceAll(manifests, "metadata: {name: ", "metadata: {namespace: "+w.manifests.Namespace+", name: "))
}
