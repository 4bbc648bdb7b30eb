package retention_test

import (
	"fmt"
	"strings"
)

// point is what one turn of the benchmark measured.
type point struct {
	phase   string
	seconds float64 // since the first turn began, at its end
	size    float64 // of the table with its indexes, in MB
	p99     float64 // of the latency, in milliseconds
}

// plot draws the size of the table and the latency over time. The sweep's time is shaded.
func plot(points []point) string {
	var b strings.Builder
	b.WriteString(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 260" font-family="sans-serif" font-size="12">` + "\n<rect width=\"640\" height=\"260\" fill=\"white\"/>\n")
	end := points[len(points)-1].seconds
	panel := func(left float64, title, unit, colour string, value func(point) float64) {
		top, began := 0.0, 0.0
		for _, p := range points {
			top = max(top, value(p))
			if p.phase == "before" {
				began = p.seconds
			}
		}
		x := func(seconds float64) float64 { return left + 245*seconds/end }
		y := func(v float64) float64 { return 220 - 165*v/top }
		var line []string
		stopped := began
		for _, p := range points {
			line = append(line, fmt.Sprintf("%.1f,%.1f", x(p.seconds), y(value(p))))
			if p.phase == "while" {
				stopped = p.seconds
			}
		}
		fmt.Fprintf(&b, "<rect x=\"%.1f\" y=\"40\" width=\"%.1f\" height=\"180\" fill=\"#eee\"/>\n", x(began), x(stopped)-x(began))
		fmt.Fprintf(&b, "<text x=\"%.0f\" y=\"24\" font-weight=\"bold\">%s</text>\n", left, title)
		fmt.Fprintf(&b, "<path d=\"M%.0f 40V220H%.0f\" fill=\"none\" stroke=\"#888\"/>\n", left, left+250)
		fmt.Fprintf(&b, "<text x=\"%.0f\" y=\"52\" fill=\"#555\">%.0f %s</text>\n", left+4, top, unit)
		fmt.Fprintf(&b, "<polyline points=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"2\"/>\n", strings.Join(line, " "), colour)
		fmt.Fprintf(&b, "<text x=\"%.0f\" y=\"238\">0</text><text x=\"%.0f\" y=\"238\" text-anchor=\"end\">%.0f s; shaded: the sweep</text>\n", left, left+250, end)
	}
	panel(40, "Table with its indexes", "MB", "#2563eb", func(p point) float64 { return p.size })
	panel(365, "Latency, p99 of 20 seconds", "ms", "#15803d", func(p point) float64 { return p.p99 })
	b.WriteString("</svg>\n")
	return b.String()
}
