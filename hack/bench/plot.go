package main

import (
	"fmt"
	"html"
	"slices"
	"strings"
)

// plots are the pictures for the page, by file name. A picture without data is left out.
func plots(rows []*row) map[string]string {
	files := map[string]string{}
	if bars, _ := groups(rows, "drain", perSecond); len(bars) > 0 {
		files["throughput.svg"] = barChart("Events per second: committed before, then worked off, on the same cores as PostgreSQL", bars, longestOf(bars))
	}
	if bars, at := groups(rows, "latency", p50, p95, p99); len(bars) > 0 {
		files["latency.svg"] = barChart("Milliseconds from the commit to the handler, at a steady "+at, bars, latencyLimit(bars))
	}
	return files
}

// barGroup is bars under one name.
type barGroup struct {
	name string
	bars []bar
}

// bar is a value with its text.
type bar struct {
	value float64
	text  string
}

// groups are the bars of a cell's first case.
func groups(rows []*row, cell string, metrics ...metric) (all []barGroup, which string) {
	for _, r := range rows {
		if r.cell != cell || len(r.runs) == 0 || len(all) > 0 && r.which != which {
			continue
		}
		g := barGroup{name: r.system}
		which = r.which
		for _, m := range metrics {
			value, _, _, _ := r.of(m)
			text := m.text(value)
			if len(metrics) > 1 {
				text = strings.TrimSuffix(string(m), " ms") + " " + text
			}
			g.bars = append(g.bars, bar{value, text})
		}
		all = append(all, g)
	}
	return all, which
}

// longestOf is the value of the longest bar.
func longestOf(groups []barGroup) (longest float64) {
	for _, g := range groups {
		for _, b := range g.bars {
			longest = max(longest, b.value)
		}
	}
	return longest
}

func isOurs(system string) bool { return strings.HasPrefix(system, "ours") }

// latencyLimit cuts the bars of slow systems, visibly, so that those of the others can be distinguished.
func latencyLimit(groups []barGroup) float64 {
	own := slices.DeleteFunc(slices.Clone(groups), func(g barGroup) bool { return !isOurs(g.name) })
	return min(longestOf(groups), 5*longestOf(own))
}

// barChart draws horizontal bars from zero to limit, with their values.
func barChart(title string, groups []barGroup, limit float64) string {
	const width, names, height = 820, 230, 14
	var body strings.Builder
	y := 36
	for _, g := range groups {
		class := "peer"
		if isOurs(g.name) {
			class = "ours"
		}
		fmt.Fprintf(&body, `<text x="%d" y="%d" text-anchor="end">%s</text>`+"\n", names-8, y+len(g.bars)*height/2+4, html.EscapeString(g.name))
		for i, b := range g.bars {
			long := max(1, min(1, b.value/limit)*(width-names-100))
			fmt.Fprintf(&body, `<rect class="%s" opacity="%.2f" x="%d" y="%d" width="%.1f" height="%d"/>`+"\n", class, 1-0.25*float64(i), names, y+1, long, height-2)
			if b.value > limit {
				fmt.Fprintf(&body, `<path class="cut" d="M%.1f %d l4 0 l-4 %d l-4 0 z"/>`+"\n", names+long-16, y, height)
			}
			fmt.Fprintf(&body, `<text class="value" x="%.1f" y="%d">%s</text>`+"\n", names+long+5, y+height-3, html.EscapeString(b.text))
			y += height
		}
		y += 10
	}
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="system-ui, sans-serif" font-size="12" role="img">
<title>%s</title>
<style>
text { fill: #24292f } .value { fill: #57606a; font-size: 11px } .ours { fill: #0969da } .peer { fill: #8c959f } .cut { fill: #ffffff }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .value { fill: #9198a1 } .ours { fill: #4493f8 } .peer { fill: #656c76 } .cut { fill: #0d1117 }
}
</style>
<text x="8" y="18" font-size="14" font-weight="600">%s</text>
%s</svg>
`, width, y, html.EscapeString(title), html.EscapeString(title), body.String())
}
