package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files")

const defaults = "testdata/default.yaml"

// The golden file of the defaults has all that the chart makes. That of another set of values has the lines in which
// the set differs from the defaults.
func TestChartRendersTheGoldenFiles(t *testing.T) {
	base := render(t, "--values", defaults)
	for _, values := range valueSets(t) {
		golden, got := strings.TrimSuffix(values, "yaml")+"golden.yaml", base
		if values != defaults {
			golden, got = strings.TrimSuffix(values, "yaml")+"golden.diff", difference(base, render(t, "--values", values))
		}
		if *update {
			if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if string(want) != got {
			diff := exec.CommandContext(t.Context(), "diff", "-u", "--label", golden, "--label", "chart", golden, "-")
			diff.Stdin = strings.NewReader(got)
			changes, _ := diff.CombinedOutput()
			t.Errorf("%s: the chart makes something else now; `go test ./hack/chart -update` accepts it:\n%s", values, changes)
		}
	}
}

// difference returns the lines that only base has, with -, and those that only text has, with +. A line above them names
// the object of base and the number of its lines that come before.
func difference(base, text string) string {
	a, b := strings.SplitAfter(base, "\n"), strings.SplitAfter(text, "\n")
	common := make([][]int, len(a)+1) // common[i][j] is the number of lines that a[i:] and b[j:] share, in order
	for i := range common {
		common[i] = make([]int, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			common[i][j] = max(common[i+1][j], common[i][j+1])
			if a[i] == b[j] {
				common[i][j] = common[i+1][j+1] + 1
			}
		}
	}
	var out strings.Builder
	for i, j, same := 0, 0, true; i < len(a) || j < len(b); {
		if i < len(a) && j < len(b) && a[i] == b[j] {
			i, j, same = i+1, j+1, true
			continue
		}
		if same {
			fmt.Fprintf(&out, "@@ %s\n", place(a, i))
		}
		same = false
		if j == len(b) || i < len(a) && common[i+1][j] >= common[i][j+1] {
			out.WriteString("-" + a[i])
			i++
		} else {
			out.WriteString("+" + b[j])
			j++
		}
	}
	return out.String()
}

var kindAndName = regexp.MustCompile(`(?m)^kind: (.+)\nmetadata:\n  name: (.+)$`)

// place names the object of a line, and the number of its lines that come before.
func place(lines []string, line int) string {
	start := line
	for start > 0 && lines[start] != "---\n" {
		start--
	}
	object := kindAndName.FindStringSubmatch(strings.Join(lines[start:], ""))
	return fmt.Sprintf("%s %s: %d", object[1], object[2], line-start)
}
