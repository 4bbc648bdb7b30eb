package cli

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// gate is an engine that records the types it admits.
type gate struct {
	admits func(string) bool
	calls  int
}

func (g *gate) Admit(admits func(string) bool) { g.admits, g.calls = admits, g.calls+1 }

// The file is read each second: what has not changed does nothing, what cannot be read changes nothing, and an
// empty one admits nothing.
//
// CONTRACT: C-82
func TestVerifiedTypesFileIsReadAgain(t *testing.T) {
	var log bytes.Buffer
	engine := &gate{}
	f := &typesFile{watchedFile: watchedFile{field: "verifiedTypesFile", path: filepath.Join(t.TempDir(), "types"), log: slog.New(slog.NewTextHandler(&log, nil))}, engine: engine}
	for _, step := range []struct {
		text            string // "-" for no file
		calls, lines    int
		admits, refuses string // types, by space
		problem         string
	}{
		{text: "-", lines: 1, problem: "write the event types"},
		{text: "", calls: 1, lines: 3, refuses: "order.placed *"},
		{text: "order.placed\npayment.*\n", calls: 2, lines: 4, admits: "order.placed payment. payment.settled", refuses: "order.placed2 order payment order.* Payment.x"},
		{text: "order.placed\r\n\npayment.*", calls: 2, lines: 4, admits: "order.placed payment.settled"},
		{text: "-", calls: 2, lines: 5, admits: "order.placed", problem: "no such file"},
		{text: strings.Repeat("x", maxTypes+1), calls: 2, lines: 6, admits: "order.placed", problem: "list fewer"},
		{text: "*", calls: 3, lines: 8, admits: "order.placed anything"},
	} {
		_ = os.Remove(f.path)
		if step.text != "-" {
			if err := os.WriteFile(f.path, []byte(step.text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for range 3 {
			f.refresh()
		}
		name := step.text[:min(len(step.text), 20)]
		if n := strings.Count(log.String(), "\n"); engine.calls != step.calls || n != step.lines {
			t.Errorf("%q: %d calls and %d log lines, want %d with %d:\n%s", name, engine.calls, n, step.calls, step.lines, log.String())
		}
		if p := f.problems(); (len(p) == 1) != (step.problem != "") || len(p) == 1 && (p[0].Field != "verifiedTypesFile" || !strings.Contains(p[0].Message, step.problem)) {
			t.Errorf("%q: problems %+v, want %q", name, p, step.problem)
		}
		for _, eventType := range strings.Fields(step.admits) {
			if !engine.admits(eventType) {
				t.Errorf("%q: %s is not admitted", name, eventType)
			}
		}
		for _, eventType := range strings.Fields(step.refuses) {
			if engine.admits(eventType) {
				t.Errorf("%q: %s is admitted", name, eventType)
			}
		}
	}
}
