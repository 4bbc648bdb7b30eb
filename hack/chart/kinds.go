package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// examples are the files of config/samples that begin with an example of each kind.
var examples = []string{"http.yaml", "outbox.yaml", "replay-group.yaml", "consumer.yaml"}

// kindsMark is the line of Chart.yaml after which everything is written by describeKinds.
const kindsMark = "  # The rest is written by hack/chart, from files/crds and config/samples.\n"

// describeKinds writes the annotations by which Artifact Hub shows the kinds, and an example of each.
func describeKinds(config, chart string) error {
	files, err := filepath.Glob(filepath.Join(chart, "files", "crds", "outbox.dev_*.yaml"))
	if err != nil {
		return err
	}
	kinds, shown := []map[string]string{}, []any{}
	for _, file := range files {
		kind, err := describeKind(file)
		if err != nil {
			return err
		}
		kinds = append(kinds, kind)
	}
	for _, name := range examples {
		objects, err := read(filepath.Join(config, "samples", name))
		if err != nil {
			return err
		}
		var example any
		if err := yaml.Unmarshal(objects[0].text, &example); err != nil {
			return err
		}
		shown = append(shown, example)
		if !slices.ContainsFunc(kinds, func(k map[string]string) bool { return k["kind"] == objects[0].kind }) {
			return fmt.Errorf("config/samples/%s begins with no kind of files/crds: %s", name, objects[0].kind)
		}
	}
	if len(shown) != len(kinds) {
		return fmt.Errorf("%d examples of %d kinds; correct examples in hack/chart/kinds.go", len(shown), len(kinds))
	}
	file := filepath.Join(chart, "Chart.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, _, found := strings.Cut(string(text), kindsMark)
	if !found {
		return errors.New(file + ": this line is missing: " + kindsMark)
	}
	return write(file, before+kindsMark, []byte(annotation("crds", kinds)+annotation("crdsExamples", shown)))
}

// describeKind takes from a definition what Artifact Hub shows of it.
func describeKind(file string) (map[string]string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var crd struct {
		Metadata struct{ Name string }
		Spec     struct {
			Names    struct{ Kind string }
			Versions []struct {
				Name   string
				Schema struct {
					OpenAPIV3Schema struct{ Description string }
				}
			}
		}
	}
	if err := yaml.Unmarshal(text, &crd); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	version := crd.Spec.Versions[0]
	description, _, _ := strings.Cut(version.Schema.OpenAPIV3Schema.Description, "\n\n")
	return map[string]string{
		"kind": crd.Spec.Names.Kind, "version": version.Name, "name": crd.Metadata.Name,
		"displayName": crd.Spec.Names.Kind, "description": strings.ReplaceAll(description, "\n", " "),
	}, nil
}

// annotation is one whose value is a list in YAML.
func annotation(name string, list any) string {
	text, _ := yaml.Marshal(list)
	return "  artifacthub.io/" + name + ": |\n    " + strings.ReplaceAll(strings.TrimSuffix(string(text), "\n"), "\n", "\n    ") + "\n"
}
