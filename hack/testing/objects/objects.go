// Package objects writes the files of objects that `dispatcher -f` and kubectl apply take.
package objects

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"

	"sigs.k8s.io/yaml"
)

// Write makes the file of a path. It has an OutboxDispatcher and the Outbox that this then refers to, both of the name and
// with these specs; without a dispatcher's spec it has the Outbox alone.
// It fails when the file cannot be written, or a spec has what JSON has not.
func Write(path, name string, dispatcher, outbox map[string]any) error {
	named := map[string]any{"name": name}
	all := []map[string]any{{"kind": "Outbox", "spec": outbox}}
	if dispatcher != nil {
		dispatcher = maps.Clone(dispatcher)
		dispatcher["outboxRef"] = named
		all = append(all, map[string]any{"kind": "OutboxDispatcher", "spec": dispatcher})
	}
	var text []byte
	for _, object := range all {
		object["apiVersion"], object["metadata"] = "outbox.dev/v1alpha1", named
		document, err := yaml.Marshal(object)
		if err != nil {
			return err
		}
		text = fmt.Appendf(text, "---\n%s", document)
	}
	return os.WriteFile(path, text, 0o600)
}

// Secret writes a key of a Secret into the folder secrets of a folder, where the dispatcher looks for it. It fails when the
// file cannot be written.
func Secret(dir, name, key, value string) error {
	of := filepath.Join(dir, "secrets", name)
	if err := os.MkdirAll(of, 0o700); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(of, key), []byte(value), 0o600)
}
