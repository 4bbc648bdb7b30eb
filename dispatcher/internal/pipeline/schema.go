package pipeline

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// rootURL is where a schema stands that does not say so by an $id.
const rootURL = "schema:///root.json"

// jsonSchema is a compiled JSON Schema.
type jsonSchema struct {
	compiled *jsonschema.Schema
	// names are what the schema names of objects' members, and what errors may name of a payload's.
	names map[string]bool
	// work of the validation that runs, on which the compiled schema counts. So turn has room for one at a time.
	work work
	turn chan struct{}
}

// compileSchema compiles a schema that may refer to the references, by their names.
func compileSchema(text []byte, references []Reference) (*jsonSchema, error) {
	root, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("%sit is not JSON: %w; correct it", misplaced(text, err), err)
	}
	s := &jsonSchema{names: map[string]bool{}, turn: make(chan struct{}, 1)}
	s.collect(root)
	documents := loader{}
	for _, r := range references {
		document, err := jsonschema.UnmarshalJSON(strings.NewReader(r.Text))
		if err != nil {
			return nil, fmt.Errorf("its reference %s is not JSON: %w; correct it", r.Name, err)
		}
		s.collect(document)
		for _, at := range places(root, r.Name) {
			documents[at] = document
		}
	}
	compile := func(vocabularies ...*jsonschema.Vocabulary) (*jsonschema.Schema, error) {
		c := jsonschema.NewCompiler()
		c.UseLoader(documents)
		for _, v := range vocabularies {
			c.RegisterVocabulary(v)
			c.AssertVocabs()
		}
		if err := c.AddResource(rootURL, root); err != nil {
			return nil, err
		}
		return c.Compile(rootURL)
	}
	// Once without: where there is a vocabulary, the library holds the schema against a smaller metaschema.
	if _, err = compile(); err == nil {
		s.compiled, err = compile(s.work.vocabulary())
	}
	if err != nil {
		return nil, fmt.Errorf("it is not a JSON Schema: %s; correct it", invalid(text, err))
	}
	return s, nil
}

// places are the URLs by which a schema may mean a reference of a name: the name itself, and what it is
// from where the schema stands.
func places(root any, name string) []string {
	all := []string{name}
	bases := []string{rootURL}
	if object, ok := root.(map[string]any); ok {
		if id, ok := object["$id"].(string); ok {
			bases = append(bases, id)
		}
	}
	ref, err := url.Parse(name)
	if err != nil {
		return all
	}
	for _, base := range bases {
		if u, err := url.Parse(base); err == nil {
			all = append(all, u.ResolveReference(ref).String())
		}
	}
	return all
}

// collect notes the names of members in a schema's document.
func (s *jsonSchema) collect(document any) {
	switch d := document.(type) {
	case map[string]any:
		for keyword, value := range d {
			if members, ok := value.(map[string]any); ok && keyword == "properties" {
				for name := range members {
					s.names[name] = true
				}
			}
			s.collect(value)
		}
	case []any:
		for _, element := range d {
			s.collect(element)
		}
	}
}

// loader has the references of a schema, by URL, and loads nothing.
type loader map[string]any

// Load is called for documents that are neither the schema itself nor a metaschema.
func (l loader) Load(url string) (any, error) {
	if document, ok := l[url]; ok {
		return document, nil
	}
	return nil, errors.New("it is not among the schema's references, and nothing is loaded from elsewhere; put it into the schema's $defs")
}

// A validation may take leastWork steps, and workPerByte more for each byte of the payload (CONTRACT C-33, C-35). A
// schema that refers to itself in two places takes 2 to the power of the payload's depth, without this. The library keeps
// some hundred bytes for each step that fails, so this bounds its memory too.
const (
	leastWork   = 250_000
	workPerByte = 4
	// levels of a payload that make a step cost one more: what is kept of one that fails has the names of all levels.
	levels = 16
	// perStep is how many characters of a text or a number count as a step.
	perStep = 16
)

var errTooMuchWork = errors.New("it takes more work than a payload of its size may")

// work is what a validation may still take.
type work struct {
	ctx        context.Context
	cost, left int
}

func workFor(ctx context.Context, payload any, size int) work {
	return work{ctx, 1 + depth(payload)/levels, leastWork + workPerByte*size}
}

// depth is how deeply a value is nested.
func depth(value any) (deepest int) {
	switch v := value.(type) {
	case map[string]any:
		for _, member := range v {
			deepest = max(deepest, 1+depth(member))
		}
	case []any:
		for _, element := range v {
			deepest = max(deepest, 1+depth(element))
		}
	}
	return deepest
}

// ended is the panic that ends a validation: the library has no other way out.
type ended struct{ err error }

// vocabulary makes each part of a schema that is compiled with it count as a step. It does so as part of the format: that is
// what the library checks before all that refers to other parts, and extensions of a vocabulary come after that.
func (w *work) vocabulary() *jsonschema.Vocabulary {
	return &jsonschema.Vocabulary{URL: "urn:outbox:work", Compile: func(c *jsonschema.CompilerContext, _ map[string]any) (jsonschema.SchemaExt, error) {
		part := c.Enqueue(nil) // the one that is compiled now
		own := part.Format
		if own == nil {
			own = &jsonschema.Format{Validate: func(any) error { return nil }}
		}
		part.Format = &jsonschema.Format{Name: own.Name, Validate: func(value any) error {
			w.step(value)
			return own.Validate(value)
		}}
		return nil, nil
	}}
}

// step counts one for a value, and more for a large one. Members and elements count here too: what they fail at first is
// not counted.
func (w *work) step(value any) {
	steps := 1
	switch v := value.(type) {
	case map[string]any:
		steps += len(v)
	case []any:
		steps += len(v)
	case string:
		steps += len(v) / perStep
	case json.Number:
		steps += len(v) / perStep
	}
	if w.left -= steps * w.cost; w.left < 0 {
		panic(ended{errTooMuchWork})
	}
	if err := w.ctx.Err(); err != nil {
		panic(ended{err})
	}
}

// violation is a place at which a payload breaks a schema.
type violation struct {
	text    string
	cause   dispatcher.Cause
	finding Finding // without its field
}

// violations says where a payload breaks the schema, and nothing of what the payload holds. It fails when
// ctx ends, and when that takes more work than such a payload may.
func (s *jsonSchema) violations(ctx context.Context, payload any, size int) (all []violation, err error) {
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() {
		<-s.turn
		if r := recover(); r != nil {
			end, ok := r.(ended)
			if !ok {
				panic(r)
			}
			all, err = nil, end.err
		}
	}()
	s.work = workFor(ctx, payload, size)
	err = s.compiled.Validate(payload)
	if err == nil {
		return nil, nil
	}
	var invalid *jsonschema.ValidationError
	if !errors.As(err, &invalid) {
		return []violation{{"the schema cannot be applied", dispatcher.Cause{Class: dispatcher.ClassSchema}, Finding{What: "the schema cannot be applied"}}}, nil
	}
	s.leaves(invalid, payload, &all)
	slices.SortFunc(all, func(a, b violation) int { return strings.Compare(a.text, b.text) }) // objects have no order
	return slices.Compact(all), nil
}

// maxLeaves is how many violations are made of a schema's: an error names a few of them (CONTRACT C-35).
const maxLeaves = 100

// leaves are the first violations that have no causes of their own.
func (s *jsonSchema) leaves(e *jsonschema.ValidationError, payload any, all *[]violation) {
	if len(*all) >= maxLeaves {
		return
	}
	_, names := e.ErrorKind.(*kind.PropertyNames) // its causes are about a name, not about a place
	if len(e.Causes) > 0 && !names {
		for _, cause := range e.Causes {
			s.leaves(cause, payload, all)
		}
		return
	}
	shown, place := s.place(e.InstanceLocation, payload)
	in := keyword(e)
	what, missing := in, ""
	switch k := e.ErrorKind.(type) {
	case *kind.Required:
		what += " (" + clip(strings.Join(k.Missing, ", ")) + ")" // names that the schema has
		missing = "/" + escape(k.Missing[0])
	case *kind.Type:
		what += fmt.Sprintf(" (%s, not %s)", strings.Join(k.Want, " or "), k.Got)
	}
	*all = append(*all, violation{
		fmt.Sprintf("at %s: %s", shown, what),
		dispatcher.Cause{Class: dispatcher.ClassSchema, Code: in[strings.LastIndexByte(in, '/')+1:], Place: place + missing},
		Finding{Place: place, What: what},
	})
}

// keyword is the place in the schema.
func keyword(e *jsonschema.ValidationError) string {
	at := strings.TrimPrefix(e.SchemaURL, rootURL)
	if decoded, err := url.PathUnescape(at); err == nil {
		at = decoded
	}
	switch k := e.ErrorKind.(type) {
	case nil, *kind.PropertyNames: // the place is whole
	case *kind.Not:
		at += "/not"
	default:
		for _, token := range k.KeywordPath() {
			at += "/" + token
		}
	}
	return clip(at)
}

// place is a JSON pointer as errors name it, with * for what may be data, and the same with * for indexes too.
func (s *jsonSchema) place(tokens []string, payload any) (shown, place string) {
	if len(tokens) == 0 {
		return "the payload itself", ""
	}
	var all, same strings.Builder
	for _, token := range tokens {
		shown, known := "*", "*"
		switch v := payload.(type) {
		case map[string]any:
			if s.names[token] {
				shown = escape(token)
				known = shown
			}
			payload = v[token]
		case []any:
			if i, err := strconv.Atoi(token); err == nil && i >= 0 && i < len(v) {
				shown, payload = token, v[i]
			}
		}
		all.WriteString("/" + shown)
		same.WriteString("/" + known)
	}
	return clip(all.String()), same.String()
}

// escape is a member's name in a JSON pointer.
func escape(name string) string { return strings.NewReplacer("~", "~0", "/", "~1").Replace(name) }

// clip bounds one text of an error.
func clip(s string) string {
	const most = 200
	if utf8.RuneCountInString(s) <= most {
		return s
	}
	return string([]rune(s)[:most]) + "..."
}
