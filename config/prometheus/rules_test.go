// Package prometheus_test plays the alert rules with promtool.
package prometheus_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/promtool"
)

type rule struct {
	Alert, Expr         string
	Labels, Annotations map[string]string
}

// rules returns the rules, and the file of rules that Prometheus itself reads.
func rules(t *testing.T) (all []rule, file []byte) {
	t.Helper()
	file, err := promtool.Rules("../..")
	need.OK(t, err)
	var groups struct {
		Groups []struct{ Rules []rule }
	}
	need.OK(t, yaml.Unmarshal(file, &groups))
	for _, group := range groups.Groups {
		all = append(all, slices.DeleteFunc(group.Rules, func(r rule) bool { return r.Alert == "" })...)
	}
	return all, file
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	need.OK(t, err)
	return text
}

// Each alert fires when it should and not when it should not.
// REQUIREMENT: STORAGE-60
func TestRulesFireWhenTheyShould(t *testing.T) {
	dir := t.TempDir()
	all, file := rules(t)
	cases := read(t, filepath.Join("testdata", "alerts.yaml"))
	for name, text := range map[string][]byte{"rules.yaml": file, "alerts.yaml": cases} {
		need.OK(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
	for _, args := range [][]string{{"check", "rules", "rules.yaml"}, {"test", "rules", "alerts.yaml"}} {
		need.Server(t, promtool.Run(t.Context(), dir, args...), promtool.ErrMissing)
	}
	for _, r := range all {
		need.That(t, strings.Contains(string(cases)+testFile(hours), `alertname="`+r.Alert+`"`), "no case of testdata/alerts.yaml or of the objective lets %s fire", r.Alert)
	}
}

// Each alert has a page that says what to do and a row in the README, each page has an alert, and an alert
// uses metrics that exist.
// REQUIREMENT: STORAGE-60
func TestRunbooksMatchAlertsAndMetrics(t *testing.T) {
	readme, metrics := string(read(t, "README.md")), string(read(t, "../../dispatcher/internal/metrics/README.md"))
	all, _ := rules(t)
	var alerts []string
	for _, r := range all {
		alerts = append(alerts, r.Alert)
		page := "runbooks/" + r.Alert + ".md"
		if !strings.HasSuffix(r.Annotations["runbook_url"], "/config/prometheus/"+page) {
			t.Errorf("%s: runbook_url is %q, want the URL of %s", r.Alert, r.Annotations["runbook_url"], page)
		}
		need.That(t, slices.Contains([]string{"critical", "warning", "info"}, r.Labels["severity"]) && r.Annotations["summary"] != "" && r.Annotations["description"] != "",
			"%s misses its severity, summary or description", r.Alert)
		need.That(t, strings.Contains(readme, "| ["+r.Alert+"]("+page+") |"), "README.md has no row for %s", r.Alert)
		for _, metric := range regexp.MustCompile(`\boutbox_[a-z_]+\b`).FindAllString(r.Expr, -1) {
			need.That(t, metric == "outbox_namespace" || strings.Contains(metrics+readme, "| `"+metric+"` |"), "%s uses %s, which is not a metric", r.Alert, metric)
		}
		text := string(read(t, page))
		need.Want(t, "", "%s: %q has a flag before the plugin's name, which kubectl refuses", regexp.MustCompile(`kubectl (-\S+ \S+ )+outbox `).FindString(text), page)
		for _, heading := range []string{"# " + r.Alert + "\n", "\n## What it means\n", "\n## Look here\n", "\n## Do this\n"} {
			if !strings.Contains(text, heading) {
				t.Errorf("%s misses the heading %q", page, strings.TrimSpace(heading))
			}
		}
	}
	pages, err := filepath.Glob("runbooks/*.md")
	need.That(t, err == nil && len(pages) >= len(alerts), "%d pages for %d alerts: %v", len(pages), len(alerts), err)
	for _, page := range pages {
		need.That(t, slices.Contains(alerts, strings.TrimSuffix(filepath.Base(page), ".md")), "%s speaks of an alert that is not there", page)
	}
}
