package scale

import (
	"fmt"
	"math"
	"strings"
)

func table(results []result) string {
	var b strings.Builder
	b.WriteString("| OutboxDispatchers | all reconciled | processor time for that, in all | an edit, median | an edit, slowest of 10 | manager's memory, at most | manager's processor at rest | writes in 30 idle seconds |\n|---|---|---|---|---|---|---|---|\n")
	for _, r := range results {
		fmt.Fprintf(&b, "| %d | %.1f s | %.0f s | %.2f s | %.2f s | %.0f MiB | %.0f %% of a core | %d |\n",
			r.size, r.all.Seconds(), r.cpuForAll, r.edits[len(r.edits)/2].Seconds(), r.edits[len(r.edits)-1].Seconds(), r.memory, 100*r.cpuAtRest, r.idle)
	}
	return b.String()
}

// plot draws processor time and memory over the number of OutboxDispatchers, which has a logarithmic axis.
func plot(results []result) string {
	var b strings.Builder
	b.WriteString(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 260" font-family="sans-serif" font-size="12">` + "\n<rect width=\"640\" height=\"260\" fill=\"white\"/>\n")
	panel := func(left float64, title, unit, colour string, limit float64, value func(result) float64) {
		top := limit
		for _, r := range results {
			top = max(top, value(r))
		}
		low, high := math.Log10(float64(results[0].size)), math.Log10(float64(results[len(results)-1].size))
		x := func(size int) float64 { return left + 10 + 230*(math.Log10(float64(size))-low)/max(high-low, 1e-9) }
		y := func(v float64) float64 { return 220 - 170*v/top }
		fmt.Fprintf(&b, "<text x=\"%.0f\" y=\"24\" font-weight=\"bold\">%s</text>\n", left, title)
		fmt.Fprintf(&b, "<path d=\"M%.0f 40V220H%.0f\" fill=\"none\" stroke=\"#888\"/>\n", left, left+255)
		fmt.Fprintf(&b, "<path d=\"M%.0f %.1fH%.0f\" stroke=\"#c33\" stroke-dasharray=\"4 4\"/><text x=\"%.0f\" y=\"%.1f\" fill=\"#c33\">target: %.0f %s</text>\n", left, y(limit), left+255, left+4, y(limit)-4, limit, unit)
		var points []string
		for _, r := range results {
			points = append(points, fmt.Sprintf("%.1f,%.1f", x(r.size), y(value(r))))
			fmt.Fprintf(&b, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"%s\"/><text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%.0f %s</text><text x=\"%.1f\" y=\"238\" text-anchor=\"middle\">%d</text>\n",
				x(r.size), y(value(r)), colour, x(r.size), y(value(r))-10, value(r), unit, x(r.size), r.size)
		}
		fmt.Fprintf(&b, "<polyline points=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"2\"/>\n", strings.Join(points, " "), colour)
		fmt.Fprintf(&b, "<text x=\"%.0f\" y=\"254\">OutboxDispatchers</text>\n", left+75)
	}
	// Processor time: the same on a machine that others use too. The target is that of two cores.
	panel(40, "Processor time until all are reconciled", "s", "#2563eb", 2*allWithin.Seconds(), func(r result) float64 { return r.cpuForAll })
	panel(365, "Memory of the manager, at most", "MiB", "#15803d", maxMemory, func(r result) float64 { return r.memory })
	b.WriteString("</svg>\n")
	return b.String()
}
