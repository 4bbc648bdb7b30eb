package hack

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// words are the ones that the project does not use, each with the field's own term.
var words = []struct{ never, write string }{
	{`\bletters?\b`, "dead letter; for the alphabet: character"},
	{`\b(told|tells?|telling)\b`, "report, notify, log, say"},
	{`\b(nobody|somebody)\b`, "no worker, no client; another process, a person"},
	{`\b(die|dies|died|dying|deaths?)\b`, "become dead, dead-lettered; for a process: crash, exit, be killed"},
	{`\b(answer|answers|answered|answering)\b`, "response, result, reply"},
	{`\b(ask|asks|asked|asking|questions?)\b`, "request, query, read"},
	{`\bpatience\b`, "wait timeout"},
	{`\bbesides?\b`, "in addition to, next to, during"},
	{`\bheld topics?\b|\btopics? (is |are |stays? |was |were )?held\b|\ball held\b|\bhold(s|ing)? (a|the|its|their) topics?\b`, "paused topic; circuit open"},
	{`\btrials?\b`, "half-open probe"},
	{`\baway\b|\b(is|are|was|comes) back\b`, "unreachable; recovered"},
	{`\b(bury|buries|buried|unburied)\b`, "mark dead"},
	{`\b(lanes?|parcels?|company)\b`, "channel; group; maxBatch"},
	{`\b(go|goes|going|gone|went) on\b`, "continue"},
	{`\b(anew|mend|mends|mended|mending|affairs?)\b`, "again; fix; concern"},
	{`\b(news|fews)\b`, "wokenSinceClaim; smallClaims"},
	{`\b(is|are) no\b`, "is not a, has no, does not"},
}

// riddle is a function whose name does not say what it does.
var riddle = regexp.MustCompile(`^func (\([^)]*\) )?(look|low|part|short|enough|skip|want|full|rest|signal|signs|ageAt|expectFew|askSink)\(`)

// thatOf begins a comment, or a description in a CRD, with a pronoun for its noun: "namespace is that of the events".
var thatOf = regexp.MustCompile(`^\s*(//|description:) [\w"']+( and \w+)* (is|are) (that|those) of `)

var (
	camel = regexp.MustCompile(`([a-z0-9])([A-Z])|([A-Z])([A-Z][a-z])`)
	// properNouns are names that others gave, and phrases in which a word above is the field's own. Requirements quote documents.
	properNouns = regexp.MustCompile(`dead[-_ ]?letter|x-death|^ *says: .*|there (is|are) no\b|["\x60]nobody["\x60]|"ask(ing)?"|is ask error|is no match error`)
)

// plain returns a text as words of small characters: DeadLetter, dead_letter and deadLetter are two words.
func plain(text string) string {
	text = strings.ReplaceAll(camel.ReplaceAllString(text, "$1$3 $2$4"), "_", " ")
	return properNouns.ReplaceAllString(strings.ToLower(text), "")
}

// TestWords keeps out the words for which the field has better ones. A subtest is a folder:
// go test ./hack -run TestWords/dispatcher/engine
func TestWords(t *testing.T) {
	patterns := make([]string, len(words))
	each := make([]*regexp.Regexp, len(words))
	for i, w := range words {
		patterns[i], each[i] = w.never, regexp.MustCompile(w.never)
	}
	one := regexp.MustCompile(strings.Join(patterns, "|"))
	all := files(t, ".go", ".sql", ".md", ".yaml", ".tpl", ".sh", ".json", ".txt", "Makefile")
	faults := map[string][]string{}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if name == "hack/words_test.go" || strings.HasPrefix(name, "hack/bench/peers/") {
			continue
		}
		for i, line := range append([]string{path.Base(name)}, strings.Split(all[name], "\n")...) { // line 0 is the file's name
			found := func(word, write string) {
				faults[path.Dir(name)] = append(faults[path.Dir(name)], fmt.Sprintf("%s:%d: %s -> %s: %s", name, i, word, write, strings.TrimSpace(line)))
			}
			if strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go") && riddle.MatchString(line) {
				found("a riddle", "a name that says what it does")
			}
			if (strings.HasSuffix(name, ".go") || strings.Contains(name, "/crds/")) && thatOf.MatchString(line) {
				found("that of", "the noun: \"namespace is the namespace of the events\"")
			}
			text := plain(line)
			if !one.MatchString(text) {
				continue
			}
			for k, w := range words {
				if word := each[k].FindString(text); word != "" {
					found(word, w.write)
				}
			}
		}
	}
	for _, folder := range slices.Sorted(maps.Keys(faults)) {
		t.Run(folder, func(t *testing.T) {
			t.Errorf("%d words for which the field has better ones:\n%s", len(faults[folder]), strings.Join(faults[folder], "\n"))
		})
	}
}
