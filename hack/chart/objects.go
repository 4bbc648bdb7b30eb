package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// object is one object of a file of config/.
type object struct {
	file, kind, name string
	text             []byte
}

// copies says which files of config/ go into which folder of the chart's files/, where they are all that is there.
var copies = []struct{ from, to string }{
	{"admission/*.yaml", "admission"},
	{"admission/restricted/*.yaml", "restricted"},
	{"rbac/users.yaml", "users"},
	{"rbac/*.yaml", "rbac"},
	{"manager/*.yaml", "manager"},
	{"network-policy/*.yaml", "network-policy"},
	{"prometheus/*.yaml", "prometheus"},
}

// ownKinds are written in the chart itself: there is nothing in them that config/ says too.
var ownKinds = []string{"Kustomization", "Namespace", "ServiceAccount", "PodDisruptionBudget", "RoleBinding", "ClusterRoleBinding"}

// copyObjects writes each object into a file of its own, by folder, kind and name.
func copyObjects(config, files string) error {
	seen := map[string]bool{}
	for _, c := range copies {
		if err := os.RemoveAll(filepath.Join(files, c.to)); err != nil {
			return err
		}
		found, err := filepath.Glob(filepath.Join(config, filepath.FromSlash(c.from)))
		if err != nil || len(found) == 0 {
			return fmt.Errorf("config/%s: no such file (%w)", c.from, err)
		}
		for _, file := range found {
			if seen[file] {
				continue // the first folder that names it has it
			}
			seen[file] = true
			objects, err := read(file)
			if err != nil {
				return err
			}
			for _, o := range objects {
				if slices.Contains(ownKinds, o.kind) {
					continue
				}
				from, _ := filepath.Rel(filepath.Dir(config), file)
				header := fmt.Sprintf("# Copied from %s by hack/chart.\n", filepath.ToSlash(from))
				if err := write(filepath.Join(files, c.to, strings.ToLower(o.kind)+"-"+o.name+".yaml"), header, o.text); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// read returns the objects of a file. A kustomization has no name.
func read(file string) ([]object, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var objects []object
	for _, part := range bytes.Split(append([]byte("\n"), text...), []byte("\n---\n")) {
		var head struct {
			Kind     string
			Metadata struct{ Name string }
		}
		if err := yaml.Unmarshal(part, &head); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		switch {
		case head.Kind == "" && filepath.Base(file) == "kustomization.yaml":
			head.Kind = "Kustomization"
		case head.Kind == "": // nothing but comments
			continue
		}
		objects = append(objects, object{file, head.Kind, head.Metadata.Name, append(bytes.TrimSpace(part), '\n')})
	}
	return objects, nil
}

func write(file, header string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, append([]byte(header), text...), 0o644)
}

// clusterGroups are the API groups of the operator's rights that only a ClusterRole can give.
var clusterGroups = []string{"authentication.k8s.io", "authorization.k8s.io"}

// watchedRoles writes config/namespaced/watched: what the operator and people may do in a namespace.
func watchedRoles(config string) error {
	operator, err := read(filepath.Join(config, "rbac", "role.yaml"))
	if err != nil {
		return err
	}
	users, err := read(filepath.Join(config, "rbac", "users.yaml"))
	if err != nil {
		return err
	}
	watched := filepath.Join(config, "namespaced", "watched")
	return errors.Join(
		writeRoles(filepath.Join(watched, "role.yaml"), "role.yaml", operator, "outbox-operator-watched"),
		writeRoles(filepath.Join(watched, "users.yaml"), "users.yaml", users, ""),
	)
}

// writeRoles turns ClusterRoles into Roles, with another name unless that is empty.
func writeRoles(file, from string, objects []object, name string) error {
	var roles []string
	for _, o := range objects {
		if o.kind != "ClusterRole" {
			continue
		}
		var role struct {
			Rules []rule `json:"rules"`
		}
		if err := yaml.UnmarshalStrict(o.text, &struct {
			APIVersion, Kind, Metadata any
			Rules                      *[]rule
		}{Rules: &role.Rules}); err != nil {
			return fmt.Errorf("%s: %w", o.file, err)
		}
		role.Rules = slices.DeleteFunc(role.Rules, func(r rule) bool {
			return slices.ContainsFunc(r.APIGroups, func(group string) bool { return slices.Contains(clusterGroups, group) })
		})
		rules, err := yaml.Marshal(role)
		if err != nil {
			return err
		}
		if name != "" {
			o.name = name
		}
		roles = append(roles, fmt.Sprintf("apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata:\n  name: %s\n%s", o.name, rules))
	}
	return write(file, fmt.Sprintf("# Made from config/rbac/%s by hack/chart.\n", from), []byte(strings.Join(roles, "---\n")))
}

type rule struct {
	APIGroups     []string `json:"apiGroups,omitempty"`
	Resources     []string `json:"resources,omitempty"`
	ResourceNames []string `json:"resourceNames,omitempty"`
	Verbs         []string `json:"verbs"`
}

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
		return fmt.Errorf("%d examples of %d kinds; correct examples in hack/chart/objects.go", len(shown), len(kinds))
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
