// Command chart writes what the Helm chart and config/namespaced have from elsewhere: copies of the objects of
// config/, the roles of a watched namespace, the schema of the chart's values, the table of values in its page, and what
// Artifact Hub shows of the kinds.
//
// The templates take from the copies what both say: rules of roles, the container, ports, alerts. So a change in
// config/ is a change of the chart, by `make generate`, and `make verify` finds one that was forgotten. The CRDs are
// not copied: the chart has the files, and config/crd refers to them.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"
)

func main() {
	if err := generate("."); err != nil {
		fmt.Fprintln(os.Stderr, "hack/chart:", err)
		os.Exit(1)
	}
}

// generate works on the checkout in root.
func generate(root string) error {
	config, chart := filepath.Join(root, "config"), filepath.Join(root, "charts", "outbox-operator")
	return errors.Join(
		copyObjects(config, filepath.Join(chart, "files")),
		watchedRoles(config),
		describeValues(chart),
		describeKinds(config, chart),
	)
}

// schemaMark begins a line of a comment in values.yaml whose rest is JSON Schema: it is added to what the default
// says, and a value with properties of its own and the mark "type" is one value, not a group of values.
const schemaMark = "@schema "

// value is a value of the chart, or a group of them.
type value struct {
	path, description string
	defaults          any
	schema            map[string]any
	members           []*value // of a group
}

// describeValues writes values.schema.json, and the table in the chart's page between the two marks.
func describeValues(chart string) error {
	text, err := os.ReadFile(filepath.Join(chart, "values.yaml"))
	if err != nil {
		return err
	}
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil {
		return fmt.Errorf("values.yaml: %w", err)
	}
	root, err := group("", document.Content[0])
	if err != nil {
		return err
	}
	schema := root.jsonSchema()
	schema["$schema"] = "http://json-schema.org/draft-07/schema#"
	schema["properties"].(map[string]any)["global"].(map[string]any)["additionalProperties"] = true // other charts' too
	out, err := marshalJSON(schema)
	if err != nil {
		return err
	}
	if err := write(filepath.Join(chart, "values.schema.json"), "", out); err != nil {
		return err
	}
	return replaceTable(filepath.Join(chart, "README.md"), root.table())
}

// group reads a mapping of values.yaml.
func group(path string, node *yaml.Node) (*value, error) {
	g := &value{path: path}
	for i := 0; i < len(node.Content); i += 2 {
		key, content := node.Content[i], node.Content[i+1]
		m := &value{path: strings.TrimPrefix(path+"."+key.Value, "."), schema: map[string]any{}}
		var sentences []string
		for line := range strings.Lines(key.HeadComment) {
			line = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "#"))
			if annotation, ok := strings.CutPrefix(line, schemaMark); ok {
				if err := json.Unmarshal([]byte(annotation), &m.schema); err != nil {
					return nil, fmt.Errorf("values.yaml: %s: %s: %w", m.path, annotation, err)
				}
			} else if line != "" {
				sentences = append(sentences, line)
			}
		}
		m.description = strings.Join(sentences, " ")
		if content.Kind == yaml.MappingNode && len(content.Content) > 0 && m.schema["type"] == nil {
			members, err := group(m.path, content)
			if err != nil {
				return nil, err
			}
			m.members = members.members
		} else if err := m.leaf(content); err != nil {
			return nil, err
		}
		g.members = append(g.members, m)
	}
	return g, nil
}

// leaf takes the default and the type from the value itself.
func (v *value) leaf(node *yaml.Node) error {
	if v.description == "" {
		return fmt.Errorf("values.yaml: %s has no comment; say what it is", v.path)
	}
	if err := node.Decode(&v.defaults); err != nil {
		return fmt.Errorf("values.yaml: %s: %w", v.path, err)
	}
	if v.schema["type"] == nil {
		name, ok := map[string]string{"!!bool": "boolean", "!!int": "integer", "!!str": "string", "!!seq": "array", "!!map": "object"}[node.ShortTag()]
		if !ok {
			return fmt.Errorf("values.yaml: %s: the default does not show the type; add a line # %s{\"type\": …}", v.path, schemaMark)
		}
		v.schema["type"] = name
	}
	return nil
}

func (v *value) jsonSchema() map[string]any {
	if v.members == nil {
		schema := maps.Clone(v.schema)
		schema["description"] = v.description
		schema["default"] = v.defaults
		return schema
	}
	properties := map[string]any{}
	for _, m := range v.members {
		properties[m.path[strings.LastIndex(m.path, ".")+1:]] = m.jsonSchema()
	}
	return map[string]any{"type": "object", "additionalProperties": false, "properties": properties}
}

// table has a row for each value, in the order of values.yaml.
func (v *value) table() string {
	var rows []string
	var add func(*value)
	add = func(v *value) {
		for _, m := range v.members {
			add(m)
		}
		if v.members == nil {
			shown, _ := json.Marshal(v.defaults)
			rows = append(rows, fmt.Sprintf("| `%s` | `%s` | %s |\n", v.path, shown, strings.ReplaceAll(v.description, "|", `\|`)))
		}
	}
	add(v)
	return "| value | default | what it is |\n|---|---|---|\n" + strings.Join(rows, "")
}

const tableBegin, tableEnd = "<!-- values: written by hack/chart from values.yaml -->\n", "<!-- end of values -->\n"

func replaceTable(file, table string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, rest, begins := strings.Cut(string(text), tableBegin)
	_, after, ends := strings.Cut(rest, tableEnd)
	if !begins || !ends {
		return errors.New(file + ": the marks of the table of values are missing: " + tableBegin + tableEnd)
	}
	return os.WriteFile(file, []byte(before+tableBegin+table+tableEnd+after), 0o644)
}

func marshalJSON(v any) ([]byte, error) {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(v)
	return out.Bytes(), err
}
