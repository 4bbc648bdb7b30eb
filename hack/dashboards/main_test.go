package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// The files are what the table makes, and small; each panel says what it is, in a unit, with the person's data source and the range
// that Grafana finds for a rate.
func TestDashboardsAreTheirTable(t *testing.T) {
	root := filepath.Join("..", "..")
	for _, d := range []dashboard{fleet, one} {
		text, err := os.ReadFile(d.file(root))
		need.OK(t, err)
		made, err := d.text()
		need.OK(t, err)
		need.That(t, string(text) == string(made), "dashboard %s is not its table: run make generate", d.name)
		need.That(t, len(text) <= 40_000, "dashboard %s has %d bytes, want 40,000 at most", d.name, len(text))
		need.Want(t, 0, "the states of breakers, limits and lateness share %d numbers", len(lateThen)+len(limits)+len(breakers)-len(merged(lateThen, limits, breakers)))
		for _, p := range d.panels {
			for _, q := range p.queries {
				need.That(t, strings.Contains(q.expr, "OF"), "%s: %q is of all dispatchers", d.name, p.title)
				need.That(t, !strings.Contains(q.expr, "rate(") || strings.Contains(q.expr, "[RATE]"), "%s: %q has a range of its own", d.name, p.title)
			}
		}
	}
}

// A metric that is renamed, or a panel without its words, is refused with what to do.
func TestGeneratorRefusesWhatIsNotThere(t *testing.T) {
	known, err := metrics(filepath.Join("..", ".."))
	need.OK(t, err)
	need.OK(t, one.check(known))
	whole := panel{title: "Pending", unit: "short", why: "What waits.", queries: []query{{expr: "outbox_pending_events_count{OF}"}}}
	for want, change := range map[string]func(*panel){
		"":                                    func(*panel) {},
		"there is no metric outbox_pending;":  func(p *panel) { p.queries = []query{{expr: "sum(outbox_pending{OF})"}} },
		"there is no metric outbox:late:ever": func(p *panel) { p.queries = []query{{expr: "outbox:late:ever{OF}"}} },
		"each panel has a title, a unit":      func(p *panel) { p.unit = "" },
	} {
		p := whole
		change(&p)
		err := dashboard{name: "d", panels: []panel{p}}.check(known)
		need.That(t, want == "" && err == nil || want != "" && err != nil && strings.Contains(err.Error(), want), "error %v, want %q", err, want)
	}
}
