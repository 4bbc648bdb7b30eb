package prometheus_test

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/promtool"
)

// played is how a dispatcher with freshness 60s and target 99.9 fares, in samples of 30 seconds as promtool notes them, and what fires.
type played struct {
	name string
	// oldest is the age of the oldest event in pod a, and observed when it was counted: by default all the time. more has other series.
	oldest, observed string
	more             []string
	// fires is what fires, at times such as 63m, without a word for nothing. At the end of ends nothing fires, and where fires is nil,
	// nothing has fired before.
	fires map[string]string
	ends  string
}

const (
	pod      = `{namespace="team", dispatcher="team/orders", pod="a", instance="a:8080"`
	late     = `alertname="OutboxEventsLate", severity="critical", namespace="team", dispatcher="team/orders"`
	often    = `alertname="OutboxEventsLateOften", severity="warning", namespace="team", dispatcher="team/orders"`
	noSeries = "stale"
)

// portions are some times of which the last of each, of so many samples, is late.
func portions(n, every, late int) string {
	return strings.Repeat(fmt.Sprintf("0x%d 100x%d ", every-late-1, late-1), n) + "0x20"
}

// eachMinute are n samples that grow with the time, from the first, one a minute.
func eachMinute(n, first int) (values string) {
	for i := range n {
		values += fmt.Sprint(first+60*i) + " _ "
	}
	return values
}

// hours are what make test plays.
var hours = []played{
	{name: "an outage pages within three minutes, and next to it stands its cause", oldest: "0x120 30+30x20 0x120", ends: "76m",
		more:  []string{`outbox_breaker_state` + pod + `, state="Unreachable"}: 0x120 1x20 0x120`},
		fires: map[string]string{"62m": "", "63m": late, "70m": late + ";" + `alertname="OutboxSinkDown", severity="info", namespace="team", dispatcher="team/orders", state="Unreachable"`}},
	{name: "scrapes just before the minute", oldest: "0x120 29.9+30x20 0x120", fires: map[string]string{"63m": late}, ends: "76m"},
	{name: "one late minute", oldest: "0x120 61 90 0x400", ends: "5h"},
	{name: "one late minute of a young dispatcher", oldest: "61 90 0x400", ends: "3h"},
	{name: "a dispatcher that has never had an event", oldest: "_x400", ends: "3h"},
	{name: "paused while events wait, and resumed", oldest: "0x120 30+30x120 3000 2000 1000 0x200", more: []string{"outbox_paused" + pod + "}: 0x122 1x119 0x200"}, ends: "5h"},
	{name: "scaled to zero while events wait", oldest: "0x120 30 " + noSeries, observed: "0+30x120 3630 " + noSeries, ends: "5h"},
	{name: "the database is gone, so the count stands still", oldest: "0x400", observed: "0+30x120 3600x40 4830+30x200", ends: "90m", fires: map[string]string{"61m": "", "64m": late, "75m": late + ";" + `alertname="OutboxCountsOld", severity="info", namespace="team", dispatcher="team/orders"`}},
	{name: "nothing was ever counted", oldest: "_x90 0x200", observed: "_x90 2730+30x200", fires: map[string]string{"3m": late}, ends: "60m"},
	{name: "scraped once a minute, and each count takes so long that it is shown by the scrape after", oldest: "0x400", observed: eachMinute(200, -70), ends: "3h"},
	{name: "one of two pods counts no more", oldest: "0x120 100x400", observed: "0+30x120 3600x400", ends: "3h",
		more: []string{`outbox_oldest_pending_age_seconds{namespace="team", dispatcher="team/orders", pod="b", instance="b:8080"}: 0x600`, `outbox_backlog_observed_timestamp_seconds{namespace="team", dispatcher="team/orders", pod="b", instance="b:8080"}: 0+30x600`}},
	{name: "late for half a minute in every ten", oldest: portions(8, 20, 1), fires: map[string]string{"71m": late}, ends: "86m"},
	{name: "late for half a minute in every two hours", oldest: portions(13, 240, 1), fires: map[string]string{"10h2m": "", "24h2m": often}, ends: "26h8m"},
	{name: "half of the budget, in portions of half a minute", oldest: "100 0x2008 100 0x300", ends: "18h"},
}

// days are thirty of them, of three dispatchers at once, since each half a minute of a case takes promtool as long.
var days = []played{
	{name: "thirty days", oldest: portions(43, 2009, 1), ends: "720h", more: slices.Concat(
		dispatcher("late", portions(21, 4114, 2)),                // half of the budget in 21 late minutes, and above in 43 portions
		dispatcher("quiet", strings.Repeat("0x2878 0.4 ", 30)))}, // an event a day
}

// dispatcher is the series of another one, for thirty days.
func dispatcher(name, oldest string) []string {
	var all []string
	for metric, values := range map[string]string{
		"oldest_pending_age_seconds": oldest, "backlog_observed_timestamp_seconds": "0+30x86400", "objective_freshness_seconds": "60x86400", "objective_target_ratio": "0.999x86400",
	} {
		all = append(all, "outbox_"+metric+strings.ReplaceAll(pod, "orders", name)+"}: "+values)
	}
	return all
}

// testFile is what promtool plays.
func testFile(all []played) string {
	var text strings.Builder
	text.WriteString("rule_files: [rules.yaml]\nevaluation_interval: 30s\ntests:\n")
	for _, p := range all {
		last, _ := time.ParseDuration(p.ends)
		length := fmt.Sprintf("x%.0f", last.Seconds()/30)
		observed := cmp.Or(p.observed, "0+30"+length)
		fmt.Fprintf(&text, "- name: %s\n  interval: 30s\n  input_series:\n", p.name)
		for _, series := range append([]string{
			`leader_election_master_status{namespace="outbox-system", name="outbox-operator.outbox.dev", pod="m"}: 1` + length,
			"outbox_oldest_pending_age_seconds" + pod + `, outbox_namespace="shop", topic="orders"}: ` + p.oldest,
			"outbox_backlog_observed_timestamp_seconds" + pod + "}: " + observed,
			"outbox_objective_freshness_seconds" + pod + "}: " + objective(p, "60", length),
			"outbox_objective_target_ratio" + pod + "}: " + objective(p, "0.999", length),
		}, p.more...) {
			name, values, _ := strings.Cut(series, "}: ")
			fmt.Fprintf(&text, "  - {series: '%s}', values: '%s'}\n", name, values)
		}
		text.WriteString("  promql_expr_test:\n")
		query := func(expr, at, labels string) {
			fmt.Fprintf(&text, "  - {expr: '%s', eval_time: %s, exp_samples: [", expr, at)
			for of := range strings.SplitSeq(labels, ";") {
				if of != "" {
					fmt.Fprintf(&text, `{labels: 'ALERTS{alertstate="firing", %s}', value: 1}, `, of)
				}
			}
			text.WriteString("]}\n")
		}
		for at, labels := range p.fires {
			query(`ALERTS{alertstate="firing"}`, at, labels)
		}
		query(`ALERTS{alertstate="firing"}`, p.ends, "")
		if p.fires == nil {
			query(`count_over_time(ALERTS{alertstate="firing"}[`+p.ends+`])`, p.ends, "")
		}
	}
	return text.String()
}

// objective is a metric that is there while the process is.
func objective(p played, value, length string) string {
	if strings.HasSuffix(p.oldest, noSeries) {
		return value + "x121 " + noSeries
	}
	return value + length
}

func play(t *testing.T, all []played) {
	t.Helper()
	dir := t.TempDir()
	_, file := rules(t)
	if len(all) == 1 { // without what no alert of the objective needs
		file, _, _ = bytes.Cut(bytes.ReplaceAll(file, []byte("sum_over_time(outbox:late:ratio1h[30d:1h]) / 720 or"), nil), []byte("- name: outbox\n"))
	}
	for name, text := range map[string][]byte{"rules.yaml": file, "objective.yaml": []byte(testFile(all))} {
		need.OK(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
	need.Server(t, promtool.Run(t.Context(), dir, "test", "rules", "objective.yaml"), promtool.ErrMissing)
}

// Who is on call is paged while the objective is in danger, and not else; all is silent five minutes after the end.
// CONTRACT: C-98
func TestObjective(t *testing.T) { play(t, hours) }

// Thirty days within the objective page no one.
func TestObjectiveForThirtyDays(t *testing.T) {
	if testing.Short() {
		t.Skip("takes minutes: make test-all")
	}
	play(t, days)
}
