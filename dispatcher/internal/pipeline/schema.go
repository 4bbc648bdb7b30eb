package pipeline

import (
	"bytes"
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
}

// compileSchema compiles a schema that may refer to the references, by their names.
func compileSchema(text []byte, references []Reference) (*jsonSchema, error) {
	root, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("%sit is not JSON: %w; correct it", misplaced(text, err), err)
	}
	s := &jsonSchema{names: map[string]bool{}}
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
	c := jsonschema.NewCompiler()
	c.UseLoader(documents)
	if err := c.AddResource(rootURL, root); err != nil {
		return nil, err
	}
	if s.compiled, err = c.Compile(rootURL); err != nil {
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

// violation is a place at which a payload breaks a schema.
type violation struct {
	text    string
	cause   dispatcher.Cause
	finding Finding // without its field
}

// violations says where the payload breaks the schema, and nothing of what the payload holds.
func (s *jsonSchema) violations(payload any) []violation {
	err := s.compiled.Validate(payload)
	if err == nil {
		return nil
	}
	var invalid *jsonschema.ValidationError
	if !errors.As(err, &invalid) {
		return []violation{{"the schema cannot be applied", dispatcher.Cause{Class: dispatcher.ClassSchema}, Finding{What: "the schema cannot be applied"}}}
	}
	var all []violation
	s.leaves(invalid, payload, &all)
	slices.SortFunc(all, func(a, b violation) int { return strings.Compare(a.text, b.text) }) // objects have no order
	return slices.Compact(all)
}

// leaves are the violations that have no causes of their own.
func (s *jsonSchema) leaves(e *jsonschema.ValidationError, payload any, all *[]violation) {
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
