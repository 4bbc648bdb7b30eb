package main

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// plots are the pictures for the README, by file name. A picture without data is left out.
func plots(r *results) map[string]string {
	files := map[string]string{}
	if bars := throughputBars(r); len(bars) > 0 {
		files["throughput.svg"] = barChart("Events per second: inserted before, then worked off, on the same cores as PostgreSQL", "events/s", bars, 0)
	}
	if bars := latencyBars(r); len(bars) > 0 {
		files["latency.svg"] = barChart("Milliseconds from the commit to the handler, at a steady "+bars[0].of, "ms", bars, latencyAxis(bars))
	}
	return files
}

// barGroup is bars under one name.
type barGroup struct {
	name, of string
	ours     bool
	bars     []bar
}

// bar is a value with the range of its runs; label says what it is when a group has several.
type bar struct {
	label            string
	value, low, high float64
	text             string
}

func throughputBars(r *results) (all []barGroup) {
	for _, row := range r.Rows {
		if row.Cell != "drain" || len(row.Runs) == 0 {
			continue
		}
		name := row.System
		if row.Case != caseOne {
			name += ", " + row.Case
		}
		m := perSecond
		all = append(all, barGroup{name: name, ours: isOurs(row.System), bars: []bar{{
			value: row.Median[m], low: row.Low[m], high: row.High[m], text: m.text(row.Median[m]),
		}}})
	}
	return all
}

func latencyBars(r *results) (all []barGroup) {
	for _, row := range r.Rows {
		if row.Cell != "latency" || len(row.Runs) == 0 || len(all) > 0 && row.Case != all[0].of {
			continue
		}
		g := barGroup{name: row.System, of: row.Case, ours: isOurs(row.System)}
		for _, m := range []metric{p50, p95, p99} {
			g.bars = append(g.bars, bar{strings.TrimSuffix(string(m), " ms"), row.Median[m], row.Low[m], row.High[m], m.text(row.Median[m])})
		}
		all = append(all, g)
	}
	return all
}

func isOurs(system string) bool { return strings.HasPrefix(system, "ours") }

// latencyAxis ends a little after the bars of the faster systems, so that they can be distinguished.
// Longer bars are cut, visibly, and have their numbers.
func latencyAxis(groups []barGroup) float64 {
	limit := 0.0
	for _, g := range groups {
		if g.ours {
			limit = max(limit, g.bars[len(g.bars)-1].value)
		}
	}
	return 5 * limit
}

const (
	chartWidth = 820
	nameWidth  = 230
	barHeight  = 14
	groupGap   = 10
)

// barChart draws horizontal bars from zero. Bars above limit are cut; 0 means the longest fits.
func barChart(title, unit string, groups []barGroup, limit float64) string {
	longest := 0.0
	for _, g := range groups {
		for _, b := range g.bars {
			longest = max(longest, b.value, b.high)
		}
	}
	cut := limit > 0 && longest > limit
	if !cut {
		limit = longest
	}
	step := niceStep(limit / 5)
	limit = math.Ceil(limit/step) * step
	x := func(v float64) float64 { return nameWidth + v/limit*(chartWidth-nameWidth-110) }

	var body strings.Builder
	y := 46.0
	for _, g := range groups {
		fmt.Fprintf(&body, `<text class="name" x="%d" y="%.0f" text-anchor="end">%s</text>`+"\n",
			nameWidth-8, y+float64(len(g.bars)*barHeight)/2+4, html.EscapeString(g.name))
		for i, b := range g.bars {
			drawBar(&body, g, i, b, x, y, limit)
			y += barHeight
		}
		y += groupGap
	}
	var t strings.Builder
	fmt.Fprintf(&t, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %.0f" font-family="system-ui, sans-serif" font-size="12" role="img">
<title>%s</title>
<style>
text { fill: #24292f } .axis { stroke: #8c959f; stroke-width: .5 } .tick { fill: #57606a; font-size: 11px }
.ours { fill: #0969da } .peer { fill: #8c959f } .range { stroke: #24292f; stroke-width: 1 } .cut { fill: #ffffff }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .tick { fill: #9198a1 } .ours { fill: #4493f8 } .peer { fill: #656c76 } .range { stroke: #e6edf3 } .cut { fill: #0d1117 }
}
</style>
<text x="8" y="18" font-size="14" font-weight="600">%s</text>
`, chartWidth, y+34, html.EscapeString(title), html.EscapeString(title))
	for v := 0.0; v <= limit*1.0001; v += step {
		fmt.Fprintf(&t, `<line class="axis" x1="%.1f" x2="%.1f" y1="36" y2="%.0f"/><text class="tick" x="%.1f" y="%.0f" text-anchor="middle">%s</text>`+"\n",
			x(v), x(v), y, x(v), y+14, tickText(v))
	}
	t.WriteString(body.String())
	note := unit
	if cut {
		note += "; bars that leave the picture are cut, and their numbers printed"
	}
	fmt.Fprintf(&t, `<text class="tick" x="%d" y="%.0f">%s</text>`+"\n</svg>\n", nameWidth, y+29, note)
	return t.String()
}

func drawBar(t *strings.Builder, g barGroup, i int, b bar, x func(float64) float64, y, limit float64) {
	class := "peer"
	if g.ours {
		class = "ours"
	}
	end := x(min(b.value, limit))
	fmt.Fprintf(t, `<rect class="%s" opacity="%.2f" x="%d" y="%.0f" width="%.1f" height="%d"/>`+"\n",
		class, 1-0.25*float64(i), nameWidth, y+1, max(1, end-nameWidth), barHeight-2)
	if b.value > limit { // two slanted gaps
		for _, back := range []float64{16, 24} {
			fmt.Fprintf(t, `<path class="cut" d="M%.1f %.0f l4 0 l-4 %d l-4 0 z"/>`+"\n", end-back, y, barHeight)
		}
	} else if b.high > b.low {
		fmt.Fprintf(t, `<line class="range" x1="%.1f" x2="%.1f" y1="%.0f" y2="%.0f"/>`+"\n", x(b.low), x(min(b.high, limit)), y+barHeight/2, y+barHeight/2)
		end = max(end, x(min(b.high, limit)))
	}
	text := b.text
	if b.label != "" {
		text = b.label + " " + text
	}
	fmt.Fprintf(t, `<text class="tick" x="%.1f" y="%.0f">%s</text>`+"\n", end+5, y+barHeight-3, html.EscapeString(text))
}

// niceStep is 1, 2 or 5 times a power of ten, at least v.
func niceStep(v float64) float64 {
	if v <= 0 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, f := range []float64{1, 2, 5} {
		if v <= f*power {
			return f * power
		}
	}
	return 10 * power
}

func tickText(v float64) string {
	if v >= 1000 {
		return thousands(int64(v + 0.5))
	}
	return fmt.Sprintf("%g", math.Round(v*100)/100)
}
