package hack

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const contract = "dispatcher/CONTRACT.md"

var (
	ruleID    = regexp.MustCompile(`\bC-[0-9]+\b`)
	ruleStart = regexp.MustCompile(`(?m)^- \*\*(C-[0-9]+)\*\* `)
)

// rulesOf returns the text of each rule of the page, by id.
func rulesOf(t *testing.T, page string) map[string]string {
	t.Helper()
	texts := map[string]string{}
	starts := ruleStart.FindAllStringSubmatchIndex(page, -1)
	for i, at := range starts {
		end := len(page)
		if i+1 < len(starts) {
			end = starts[i+1][0]
		}
		id := page[at[2]:at[3]]
		if _, twice := texts[id]; twice {
			t.Errorf("%s has %s twice; give one of them an id that is free", contract, id)
		}
		texts[id] = page[at[0]:end]
	}
	return texts
}

// Every rule that is cited stands in the contract, and every rule there has a test that names it, or
// a line that says why not.
func TestContractRulesAreCitedAndTested(t *testing.T) {
	sources := files(t, ".go", ".md", ".sql", ".yaml", ".yml", ".sh", ".proto", "Makefile", "Dockerfile")
	rules := rulesOf(t, sources[contract])
	if len(rules) < 50 {
		t.Fatalf("%s has %d rules, want all of them; is it where this test looks?", contract, len(rules))
	}
	proven := map[string]bool{}
	for _, path := range slices.Sorted(maps.Keys(sources)) {
		for line := range strings.Lines(sources[path]) {
			_, names, isProof := strings.Cut(line, "CONTRACT: ")
			for _, id := range ruleID.FindAllString(line, -1) {
				if _, there := rules[id]; !there {
					t.Errorf("%s cites %s, which %s does not have; correct the id, or add the rule", path, id, contract)
				}
			}
			if isProof && strings.HasSuffix(path, "_test.go") {
				for _, id := range ruleID.FindAllString(names, -1) {
					proven[id] = true
				}
			}
		}
	}
	for id, text := range rules {
		excused := strings.Contains(text, "*No test yet: ")
		if !proven[id] && !excused {
			t.Errorf("no test names %s; add `// CONTRACT: %s` to the test that proves it, or a line \"*No test yet: …*\" to the rule", id, id)
		}
		if proven[id] && excused {
			t.Errorf("a test names %s; remove its line \"*No test yet: …*\" from %s", id, contract)
		}
	}
}

// What users read (kubectl explain, manifests) gives the reason and not the number of a rule.
func TestUsersReadReasons(t *testing.T) {
	checked := 0
	for path, text := range files(t, ".go", ".yaml") {
		if strings.HasSuffix(path, "_test.go") || !strings.HasPrefix(path, "api/v1alpha1/") && !strings.HasPrefix(path, "config/") {
			continue
		}
		checked++
		if id := ruleID.FindString(text); id != "" {
			t.Errorf("%s cites %s; users do not have the contract at hand, so write the reason", path, id)
		}
	}
	if checked < 50 {
		t.Errorf("%d files were checked", checked)
	}
}

// A page that cites a rule links the contract: a reader sees what the rule is now, not what it was when the page was written.
func TestPagesLinkTheRulesThatTheyCite(t *testing.T) {
	linked := regexp.MustCompile(`\[C-[0-9]+\]\([^)]*CONTRACT\.md[^)]*\)`)
	for name, text := range files(t, ".md") {
		if name == contract || name == ".github/CONTRIBUTING.md" {
			continue
		}
		text = linked.ReplaceAllString(codeBlock.ReplaceAllString(text, ""), "")
		for _, id := range ruleID.FindAllString(text, -1) {
			t.Errorf("%s cites %s without a link; write [%[2]s](…/CONTRACT.md)", name, id)
		}
	}
}
