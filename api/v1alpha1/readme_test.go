package v1alpha1_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// The page has a row for each field of the top two levels of each kind, with its default. The members of
// sink have pages of their own.
// CONTRACT: C-100, C-104
func TestReadmeFields(t *testing.T) {
	before, after, found := strings.Cut(read(t, "README.md"), "\n# Outbox\n")
	if !found {
		t.Fatal("the page has no part about Outbox")
	}
	checkFields(t, "OutboxDispatcher", before, 40)
	outbox, after, found := strings.Cut(after, "\n# DeadLetterReplay\n")
	if !found {
		t.Fatal("the page has no part about DeadLetterReplay")
	}
	replay, consumer, found := strings.Cut(after, "\n# OutboxConsumer\n")
	if !found {
		t.Fatal("the page has no part about OutboxConsumer")
	}
	checkFields(t, "Outbox", outbox, 8)
	checkFields(t, "DeadLetterReplay", replay, 20)
	checkFields(t, "OutboxConsumer", consumer, 10)
}

func checkFields(t *testing.T, kind, page string, least int) {
	t.Helper()
	fields := 0
	walk(t, kind, func(path string, s *apiextensionsv1.JSONSchemaProps) {
		field, isSpec := strings.CutPrefix(path, "spec.")
		if kind, ok := strings.CutPrefix(field, "sink."); ok && !strings.Contains(kind, ".") && !strings.Contains(page, "`"+kind+"`") {
			t.Errorf("the page does not name the sink %s", kind)
		}
		if !isSpec || strings.HasPrefix(field, "sink.") || strings.HasPrefix(field, "podTemplate.") || strings.Count(field, ".") > 1 || strings.HasSuffix(field, "[]") {
			return
		}
		fields++
		byDefault := ""
		if s.Default != nil && s.Type != "object" {
			byDefault = strings.Trim(string(s.Default.Raw), `"`) + " "
		}
		if row := fmt.Sprintf("\n| `%s` | %s|", field, byDefault); !strings.Contains(page, row) {
			t.Errorf("the page misses the row %q", row)
		}
	})
	if rows := len(regexp.MustCompile("(?m)^\\| `[a-z][A-Za-z0-9.\\[\\]]*` \\| ").FindAllString(page, -1)); fields < least || rows != fields {
		t.Errorf("the page has %d rows of fields of %s, the CRD %d", rows, kind, fields)
	}
}

// The page names every condition and every reason.
// CONTRACT: C-101
func TestReadmeConditions(t *testing.T) {
	page := read(t, "README.md")
	words := regexp.MustCompile(`(?m)^\t(?:Reason\w+|\w+Condition) += "(\w+)"$`).FindAllStringSubmatch(read(t, "conditions.go"), -1)
	if len(words) < 40 {
		t.Fatalf("conditions.go has %d conditions and reasons, want all", len(words))
	}
	for _, word := range words {
		if !strings.Contains(page, "`"+word[1]+"`") {
			t.Errorf("the page does not name %s", word[1])
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
