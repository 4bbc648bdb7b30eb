package pipeline

import (
	"fmt"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/outbox-operator/outbox-operator/dispatcher/internal/pattern"
)

// What the schemas and expressions of one dispatcher may take together (CONTRACT C-35).
const (
	// MaxSchemas is the most bytes of all schemas, with their references.
	MaxSchemas = 256 << 10
	// MaxPatterns is the most states of all regular expressions, in schemas and in expressions. Each character is
	// one, and a{1000} is a thousand.
	MaxPatterns = 50_000
)

// budget counts what each field uses of that.
type budget struct {
	mu     sync.Mutex
	usages map[string]usage
}

// usage is the bytes of a schema, and the states of regular expressions.
type usage struct{ text, states int }

// take sets a field's usage, and returns the one before. It fails when a limit is exceeded; then the field
// keeps the usage that it has.
func (b *budget) take(field string, u usage) (before usage, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	before = b.usages[field]
	sum := u
	for other, has := range b.usages {
		if other != field {
			sum.text, sum.states = sum.text+has.text, sum.states+has.states
		}
	}
	switch {
	case sum.text > MaxSchemas:
		return before, fmt.Errorf("the schemas of this dispatcher have %d bytes with it, and may have %d; shorten them, or divide the topics among dispatchers", sum.text, MaxSchemas)
	case sum.states > MaxPatterns:
		return before, fmt.Errorf("the regular expressions of this dispatcher have %d states with it, and may have %d, where each repetition of a character counts; use smaller repetitions, or maxLength", sum.states, MaxPatterns)
	}
	if b.usages == nil {
		b.usages = map[string]usage{}
	}
	b.usages[field] = u
	return before, nil
}

// compile compiles the schema of a field within the budget.
func (b *budget) compile(field string, text []byte, references []Reference) (*jsonSchema, error) {
	wants := usage{text: len(text)}
	for _, r := range references {
		wants.text += len(r.Text)
	}
	before, err := b.take(field, wants) // before it is read: reading takes memory too
	if err != nil {
		return nil, err
	}
	back := func(err error) (*jsonSchema, error) {
		_, _ = b.take(field, before) // which fitted
		return nil, err
	}
	for _, document := range append([]Reference{{Text: string(text)}}, references...) {
		states, err := patternStates(document.Text)
		if err != nil {
			return back(err)
		}
		wants.states += states
	}
	if _, err := b.take(field, wants); err != nil {
		return back(err)
	}
	compiled, err := compileSchema(text, references)
	if err != nil {
		return back(err)
	}
	return compiled, nil
}

// patternStates adds up the regular expressions of a schema's document. A text that is not JSON has none:
// compiling it fails.
func patternStates(text string) (states int, err error) {
	document, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		return 0, nil //nolint:nilerr // see above
	}
	add := func(place []string, re string) {
		size, wrong := pattern.Size(re)
		if states += size; wrong != nil && err == nil {
			err = fmt.Errorf("%s: %w; correct the regular expression", at([]byte(text), place), wrong)
		}
	}
	var walk func(place []string, value any)
	walk = func(place []string, value any) {
		switch v := value.(type) {
		case map[string]any:
			for keyword, value := range v {
				here := append(place[:len(place):len(place)], keyword)
				if re, ok := value.(string); ok && keyword == "pattern" {
					add(here, re)
				}
				if patterns, ok := value.(map[string]any); ok && keyword == "patternProperties" {
					for re := range patterns {
						add(append(here[:len(here):len(here)], re), re)
					}
				}
				walk(here, value)
			}
		case []any:
			for i, value := range v {
				walk(append(place[:len(place):len(place)], fmt.Sprint(i)), value)
			}
		}
	}
	walk(nil, document)
	return states, err
}
