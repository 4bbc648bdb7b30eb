package v1alpha1_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	jsonpatch "github.com/evanphx/json-patch/v5"

	"github.com/outbox-operator/outbox-operator/api/spec/rules"
	"github.com/outbox-operator/outbox-operator/api/spec/schema"
)

// checked are the words of the dispatcher about an object, sorted.
func checked(t *testing.T, text []byte) (said []string) {
	t.Helper()
	object, err := schema.Decode(text)
	if err != nil {
		return []string{err.Error()}
	}
	for _, problem := range rules.Check(schema.Of(object.(map[string]any)["kind"].(string)), object) {
		said = append(said, problem.Error())
	}
	slices.Sort(said)
	return said
}

// ownForm is what the API server puts before the words of its decoder. Of replicas below 0 it says twice that they are,
// because they are the kind's scale too: what begins with .spec.replicas is that.
var ownForm = regexp.MustCompile(`^\w+ in version "v1alpha1" cannot be handled as a \w+: strict decoding error: `)

// The dispatcher refuses each object that the API server refuses, with the same words.
//
// CONTRACT: C-28, C-101
func TestBothDoorsRefuseWithTheSameWords(t *testing.T) {
	for _, part := range refused() {
		if said := checked(t, part.Base); said != nil {
			t.Errorf("the base %s is refused: %s", part.Base, lines(said))
		}
		for _, r := range part.Refused {
			object, err := jsonpatch.MergePatch(part.Base, r.Patch)
			if err != nil {
				t.Fatalf("%s: %v", r.Name, err)
			}
			want := strings.Split(r.Says, "\n")
			for i, words := range want {
				want[i] = ownForm.ReplaceAllString(words, "")
			}
			want = slices.DeleteFunc(want, func(words string) bool { return strings.HasPrefix(words, ".spec.replicas: ") })
			slices.Sort(want)
			if said := checked(t, object); !slices.Equal(said, want) {
				t.Errorf("%s: it says:\n          %s\nwant:\n          %s", r.Name, lines(said), lines(want))
			}
		}
	}
}

// CONTRACT: C-100
func TestSamplesAreAccepted(t *testing.T) {
	for _, file := range files("..", "..", "config", "samples") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, document := range strings.Split(string(text), "\n---\n") {
			if object, err := schema.Decode([]byte(document)); err == nil && strings.Contains("\n"+document, "\napiVersion: outbox.dev/v1alpha1") && object != nil {
				if said := checked(t, []byte(document)); said != nil {
					t.Errorf("%s: %s", file, lines(said))
				}
			}
		}
	}
}
