package v1alpha1_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	jsonpatch "github.com/evanphx/json-patch/v5"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/outbox-operator/outbox-operator/api/spec/rules"
	"github.com/outbox-operator/outbox-operator/api/spec/schema"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

const chartCRDs = "../../charts/outbox-operator/files/crds"

// crds are the files of the kinds.
var crds = map[string]string{
	"OutboxDispatcher": filepath.Join(chartCRDs, "outbox.dev_outboxdispatchers.yaml"),
	"Outbox":           filepath.Join(chartCRDs, "outbox.dev_outboxes.yaml"),
	"DeadLetterReplay": filepath.Join(chartCRDs, "outbox.dev_deadletterreplays.yaml"),
	"OutboxConsumer":   filepath.Join(chartCRDs, "outbox.dev_outboxconsumers.yaml"),
}

// kubectl apply keeps the whole object as JSON in an annotation. All annotations of an object may have 256 KiB.
func TestCRDFitsIntoAnAnnotation(t *testing.T) {
	for _, file := range crds {
		text, err := os.ReadFile(file)
		need.OK(t, err)
		object, err := yaml.YAMLToJSON(text)
		need.Must(t, err == nil, "%s: %v", file, err)
		need.That(t, len(object) < 240<<10, "%s has %d bytes as JSON; kubectl apply needs less than 262144, with other annotations", file, len(object))
		t.Logf("%s has %d bytes as JSON", file, len(object))
	}
}

// kubectl takes a word for a category first, so a kind whose name is one cannot be got by name.
func TestNoKindHasTheNameOfACategory(t *testing.T) {
	var categories []string
	for kind := range crds {
		categories = append(categories, crd(t, kind).Spec.Names.Categories...)
	}
	for kind := range crds {
		names := crd(t, kind).Spec.Names
		for _, name := range append(names.ShortNames, names.Singular, names.Plural, strings.ToLower(kind)) {
			need.That(t, !slices.Contains(categories, name), "%s of the kind %s is a category too: `kubectl get %s NAME` fails", name, kind, name)
		}
	}
}

// Bounds keep an object small and its CEL rules cheap; descriptions are what kubectl explain shows.
func TestEveryFieldIsBoundedAndDescribed(t *testing.T) {
	visited := 0
	for kind := range crds {
		walk(t, kind, func(path string, s *apiextensionsv1.JSONSchemaProps) {
			visited++
			t.Run(kind+"."+path, func(t *testing.T) {
				checkBounds(t, path, s)
				checkDescription(t, path, s)
				checkDefault(t, s)
				need.That(t, s.Default == nil || !strings.Contains(path, "[]"), "a default within an item of a list: kubectl apply says \"configured\" each time, and Argo CD stays OutOfSync; let who reads the field have the default")
			})
		})
	}
	need.That(t, visited >= 80, "only %d fields were visited", visited)
}

func checkBounds(t *testing.T, path string, s *apiextensionsv1.JSONSchemaProps) {
	t.Helper()
	switch s.Type {
	case "string":
		need.That(t, s.MaxLength != nil || len(s.Enum) != 0 || s.Format != "", "a string without maxLength, enum or format")
	case "array":
		need.That(t, s.MaxItems != nil, "a list without maxItems")
		need.That(t, s.XListType != nil, "a list without a list type")
	case "integer":
		need.That(t, s.Minimum != nil && (s.Maximum != nil || !strings.HasPrefix(path, "spec.")), "an integer without bounds")
	case "object":
		need.That(t, s.AdditionalProperties == nil, "a map; use a list with a key, which can be bounded and merged")
	}
	need.That(t, s.XPreserveUnknownFields == nil || strings.HasSuffix(path, ".podTemplate") || path == "spec.pods.template", "unknown fields are kept; only podTemplate may")
}

func checkDescription(t *testing.T, path string, s *apiextensionsv1.JSONSchemaProps) {
	t.Helper()
	name := path[strings.LastIndex(path, ".")+1:]
	if strings.HasSuffix(name, "[]") { // what an item is, the list's description says
		return
	}
	need.That(t, strings.HasPrefix(s.Description, name+" "), "the description must start with %q: %s", name, s.Description)
	need.That(t, strings.HasSuffix(s.Description, "."), "the description must end with a full stop: %s", s.Description)
}

var defaultsTo = regexp.MustCompile(`Defaults\s+to\s+(\S+)\.(\s|$)`)

// checkDefault compares what the description says with what the API server does. A default that
// hangs on other fields is the operator's, and worded differently.
func checkDefault(t *testing.T, s *apiextensionsv1.JSONSchemaProps) {
	t.Helper()
	var documented, actual string
	if m := defaultsTo.FindStringSubmatch(s.Description); m != nil {
		documented = m[1]
	}
	if s.Default != nil && s.Type != "object" {
		var v any
		need.OK(t, json.Unmarshal(s.Default.Raw, &v))
		if text, ok := v.(string); ok {
			actual = text
		} else {
			actual = string(s.Default.Raw)
		}
	}
	need.Want(t, actual, "the description says that the default is %q, the schema %q", documented)
}

// The rule for the union, and what it says, list all kinds of sinks.
func TestRulesKnowEverySink(t *testing.T) {
	spec := root(t, "OutboxDispatcher").Properties["spec"]
	union := spec.Properties["sink"].XValidations[0]
	for kind := range spec.Properties["sink"].Properties {
		if slices.Contains([]string{"auth", "tls", "contentMode", "routes", "timeout"}, kind) { // of all kinds
			continue
		}
		need.That(t, strings.Contains(union.Rule, "has(self."+kind+")") && regexp.MustCompile(`\b`+kind+`\b`).MatchString(union.Message),
			"sink: the rule and its message must both have %s: %s: %s", kind, union.Rule, union.Message)
	}
}

// walk visits every field of the kind below the root, but what the API machinery brings.
func walk(t *testing.T, kind string, visit func(path string, s *apiextensionsv1.JSONSchemaProps)) {
	t.Helper()
	var fields func(path string, s *apiextensionsv1.JSONSchemaProps)
	fields = func(path string, s *apiextensionsv1.JSONSchemaProps) {
		for name, field := range s.Properties {
			if path == "" && (name == "apiVersion" || name == "kind" || name == "metadata") {
				continue
			}
			at := strings.TrimPrefix(path+"."+name, ".")
			visit(at, &field)
			if field.Items != nil {
				visit(at+"[]", field.Items.Schema)
				fields(at+"[]", field.Items.Schema)
			}
			fields(at, &field)
		}
	}
	fields("", root(t, kind))
}

func root(t *testing.T, kind string) *apiextensionsv1.JSONSchemaProps {
	t.Helper()
	return crd(t, kind).Spec.Versions[0].Schema.OpenAPIV3Schema
}

func crd(t *testing.T, kind string) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	data, err := os.ReadFile(crds[kind])
	need.OK(t, err)
	object := &apiextensionsv1.CustomResourceDefinition{}
	need.OK(t, yaml.UnmarshalStrict(data, object))
	return object
}

// The page of the kind names every sink. hack/fields writes its other fields.
// CONTRACT: C-100
func TestPageNamesEverySink(t *testing.T) {
	page := read(t, "outboxdispatcher.md")
	for sink := range root(t, "OutboxDispatcher").Properties["spec"].Properties["sink"].Properties {
		need.That(t, strings.Contains(page, "`"+sink+"`"), "outboxdispatcher.md does not name the sink %s", sink)
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
	need.Must(t, len(words) >= 40, "conditions.go has %d conditions and reasons, want all", len(words))
	for _, word := range words {
		need.That(t, strings.Contains(pages.String(), "`"+word[1]+"`"), "no page of a kind names %s", word[1])
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	need.OK(t, err)
	return string(text)
}

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
			need.Must(t, err == nil, "%s: %v", r.Name, err)
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
		need.OK(t, err)
		for _, document := range strings.Split(string(text), "\n---\n") {
			if object, err := schema.Decode([]byte(document)); err == nil && strings.Contains("\n"+document, "\napiVersion: outbox.dev/v1alpha1") && object != nil {
				if said := checked(t, []byte(document)); said != nil {
					t.Errorf("%s: %s", file, lines(said))
				}
			}
		}
	}
}
