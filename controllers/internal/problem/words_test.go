package problem

import (
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

func TestSentenceIsCapitalizedEndedAndCut(t *testing.T) {
	for text, want := range map[string]string{
		"http://a responded 500":        "http://a responded 500.",        // a URL is written as it is
		"spec.sink.routes[0].to is bad": "spec.sink.routes[0].to is bad.", // and so is a field
		"":                              "",
		"it failed":                     "It failed.",
		"Done. ":                        "Done.",
		strings.Repeat("é", 1000):       "É" + strings.Repeat("é", 499) + "…",
	} {
		need.Want(t, want, "Sentence(%q) = %q, want %q", Sentence(text), text)
	}
}
