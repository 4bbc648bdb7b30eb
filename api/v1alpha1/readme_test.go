package v1alpha1_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// The page of the kind names every sink. hack/fields writes its other fields.
// CONTRACT: C-100
func TestPageNamesEverySink(t *testing.T) {
	page := read(t, "outboxdispatcher.md")
	for sink := range root(t, "OutboxDispatcher").Properties["spec"].Properties["sink"].Properties {
		if !strings.Contains(page, "`"+sink+"`") {
			t.Errorf("outboxdispatcher.md does not name the sink %s", sink)
		}
	}
}

// The pages of the kinds name every condition and every reason.
// CONTRACT: C-101
func TestPagesNameEveryReason(t *testing.T) {
	var pages strings.Builder
	for kind := range crds {
		pages.WriteString(read(t, strings.ToLower(kind)+".md"))
	}
	words := regexp.MustCompile(`(?m)^\t(?:Reason\w+|\w+Condition) += "(\w+)"$`).FindAllStringSubmatch(read(t, "conditions.go"), -1)
	if len(words) < 40 {
		t.Fatalf("conditions.go has %d conditions and reasons, want all", len(words))
	}
	for _, word := range words {
		if !strings.Contains(pages.String(), "`"+word[1]+"`") {
			t.Errorf("no page of a kind names %s", word[1])
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
