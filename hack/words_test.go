package hack

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// words are the ones that the project does not use, each with the field's own term.
var words = []struct {
	never *regexp.Regexp
	write string
}{
	{regexp.MustCompile(`\bletters?\b`), "dead letter; for the alphabet: character"},
	{regexp.MustCompile(`\b(told|tells?|telling)\b`), "report, notify, log, say"},
	{regexp.MustCompile(`\b(nobody|somebody)\b`), "no worker, no client; another process, a person"},
	{regexp.MustCompile(`\b(die|dies|died|dying|deaths?)\b`), "become dead, dead-lettered; for a process: crash, exit, be killed"},
	{regexp.MustCompile(`\b(answer|answers|answered|answering)\b`), "response, result, reply"},
	{regexp.MustCompile(`\b(ask|asks|asked|asking|questions?)\b`), "request, query, read"},
	{regexp.MustCompile(`\bpatience\b`), "wait timeout"},
	{regexp.MustCompile(`\bbesides?\b`), "in addition to, next to, during"},
	{regexp.MustCompile(`\bheld topics?\b|\btopics? (is |are |stays? |was |were )?held\b|\ball held\b`), "paused topic; circuit open"},
	{regexp.MustCompile(`\btrials?\b`), "half-open probe"},
	{regexp.MustCompile(`\baway\b|\b(is|are|was|comes) back\b`), "unreachable; recovered"},
	{regexp.MustCompile(`\b(bury|buries|buried|unburied)\b`), "mark dead"},
	{regexp.MustCompile(`\b(lanes?|parcels?|company)\b`), "channel; group; maxBatch"},
	{regexp.MustCompile(`\b(go|goes|going|gone|went) on\b`), "continue"},
	{regexp.MustCompile(`\b(anew|mend|mends|mended|mending|affairs?)\b`), "again; fix; concern"},
	{regexp.MustCompile(`\b(news|fews)\b`), "wokenSinceClaim; smallClaims"},
	{regexp.MustCompile(`\b(is|are) no\b`), "is not a, has no, does not"},
}

var (
	camel = regexp.MustCompile(`([a-z0-9])([A-Z])`)
	// properNouns are names that others gave, and phrases in which a word above is the field's own.
	properNouns = regexp.MustCompile(`dead[-_ ]?letter|x-death|there (is|are) no\b`)
)

// TestWords keeps out the words for which the field has better ones. A subtest is a folder:
// go test ./hack -run TestWords/dispatcher/engine
func TestWords(t *testing.T) {
	faults := map[string][]string{}
	for name, text := range files(t, ".go", ".sql", ".md", ".yaml", ".tpl", ".sh", ".json", ".txt", "Makefile") {
		if name == "hack/words_test.go" || strings.HasPrefix(name, "hack/bench/peers/") {
			continue
		}
		folder := filepath.ToSlash(filepath.Dir(name))
		for i, line := range strings.Split(text, "\n") {
			plain := strings.ReplaceAll(camel.ReplaceAllString(line, "$1 $2"), "_", " ")
			plain = properNouns.ReplaceAllString(strings.ToLower(plain), "")
			for _, w := range words {
				if found := w.never.FindString(plain); found != "" {
					faults[folder] = append(faults[folder], fmt.Sprintf("%s:%d: ", name, i+1)+found+" -> "+w.write+": "+strings.TrimSpace(line))
				}
			}
		}
	}
	for folder, found := range faults {
		t.Run(folder, func(t *testing.T) {
			t.Errorf("%d words for which the field has better ones:\n%s", len(found), strings.Join(found, "\n"))
		})
	}
}
