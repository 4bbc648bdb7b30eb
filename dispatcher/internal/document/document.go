// Package document reads the objects that say what a dispatcher does: the YAML that `kubectl apply` takes. It refuses what
// the API server refuses, with the same words, and finds the keys of Secrets and ConfigMaps in a folder.
package document

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/spec/rules"
	"github.com/outbox-operator/outbox-operator/api/spec/schema"
)

// Options say where things are.
type Options struct {
	// Name is the OutboxDispatcher of the file to use. Defaults to the only one.
	Name string
	// Secrets is the folder with the keys of Secrets and ConfigMaps, each as NAME/KEY. Defaults to the folder secrets in
	// the one with the file.
	Secrets string
	// Login is whose login the settings have.
	Login spec.Login
}

const apiVersion = "outbox.dev/v1alpha1"

// object is one object of a file.
type object struct {
	kind, name, namespace, uid string
	spec                       map[string]any
}

// Load returns the settings that the objects of a file make, with the defaults. Objects of others are passed over. Where
// the OutboxDispatcher refers to an Outbox, that is in the file, or in another one of its folder. A file without an
// OutboxDispatcher has settings of its Outbox's database alone, and for the login of replays those of its DeadLetterReplay.
// It fails with all that is wrong with the file, each with its place, the API server's words and the remedy.
func Load(path string, o Options) (spec.Config, error) {
	kinds := []string{"OutboxDispatcher", "Outbox"}
	if o.Login == spec.LoginReplay {
		kinds = []string{"OutboxDispatcher", "DeadLetterReplay", "Outbox"}
	}
	c, _, err := load(path, o, kinds...)
	return c, err
}

// load returns the settings, and the object of the first of the kinds that the file has.
func load(path string, o Options, kinds ...string) (c spec.Config, main object, err error) {
	objects, err := read(path)
	if err != nil {
		return c, main, err
	}
	if main, err = choose(path, objects, o.Name, kinds); err != nil {
		return c, main, err
	}
	from := spec.Objects{Name: strings.TrimPrefix(main.namespace+"/"+main.name, "/")}
	switch main.kind {
	case "Outbox":
		from.Outbox, from.OutboxField = decode[spec.Outbox](main), "spec"
	case "OutboxDispatcher":
		from.Dispatcher = decode[spec.Dispatcher](main)
	}
	if main.spec["outboxRef"] != nil {
		name, _ := main.spec["outboxRef"].(map[string]any)["name"].(string)
		outbox, err := find(path, objects, name, main.namespace)
		if err != nil {
			return c, main, err
		}
		from.Outbox, from.OutboxField = decode[spec.Outbox](outbox), "Outbox "+name+": spec"
	}
	l := locator{dir: o.Secrets}
	if l.dir == "" {
		l.dir = filepath.Join(filepath.Dir(path), "secrets")
	}
	c, _ = from.Config(o.Login, l.file)
	if main.kind == "DeadLetterReplay" {
		replays(&c, main)
	}
	c.Sink.ApplyDefaults()
	return c, main, nil
}

// decode is the spec of a valid object.
func decode[T any](o object) *T {
	to := new(T)
	text, err := json.Marshal(o.spec)
	if err == nil {
		err = json.Unmarshal(text, to)
	}
	if err != nil {
		panic(fmt.Sprintf("%s %s: %v", o.kind, o.name, err)) // its definition is made of the type
	}
	return to
}

// separator is between the documents of a file.
var separator = regexp.MustCompile(`(?m)^---([ \t].*)?$`)

// read returns the objects of this project in a file, which are valid.
func read(path string) (all []object, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the file: %w; name it with -f", err)
	}
	begins := 0
	var problems []error
	for _, end := range append(separator.FindAllIndex(text, -1), []int{len(text), len(text)}) {
		o, err := parse(string(text[begins:end[0]]), strings.Count(string(text[:begins]), "\n"))
		if err != nil {
			problems = append(problems, err)
		} else if o != nil {
			all = append(all, *o)
		}
		begins = end[1]
	}
	if err := errors.Join(problems...); err != nil {
		return nil, err
	}
	return all, nil
}

// parse returns the object of a document that begins after so many lines, and nil for one of others.
func parse(text string, before int) (*object, error) {
	value, err := schema.Decode([]byte(text))
	if err != nil {
		return nil, fmt.Errorf("after line %d: %s; correct the YAML", before, strings.TrimPrefix(strings.TrimPrefix(err.Error(), "error converting YAML to JSON: "), "yaml: "))
	}
	members, ok := value.(map[string]any)
	switch {
	case value == nil:
		return nil, nil
	case !ok || members["kind"] == nil || members["apiVersion"] == nil:
		return nil, fmt.Errorf("line %d: it is not an object; write apiVersion: %s, kind: OutboxDispatcher, metadata and spec", before+1, apiVersion)
	case members["apiVersion"] != apiVersion:
		return nil, nil
	}
	kind, _ := members["kind"].(string)
	definition := schema.Of(kind)
	if definition == nil {
		return nil, fmt.Errorf("line %d: no matches for kind %q in version %q; correct it", before+1, kind, apiVersion)
	}
	var problems []error
	for _, problem := range rules.Check(definition, members) {
		problems = append(problems, fmt.Errorf("%s%w%s", place(text, before, problem), problem, suggestion(definition, problem)))
	}
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	metadata, _ := members["metadata"].(map[string]any)
	o := &object{kind: kind}
	o.name, _ = metadata["name"].(string)
	o.namespace, _ = metadata["namespace"].(string)
	o.uid, _ = metadata["uid"].(string)
	o.spec, _ = members["spec"].(map[string]any)
	return o, nil
}

// choose returns the object whose settings are wanted: that of the first of the kinds that there is one of.
func choose(path string, all []object, name string, kinds []string) (object, error) {
	for _, kind := range kinds {
		var names []string
		for _, o := range all {
			if o.kind == kind && (name == "" || o.name == name) {
				names = append(names, o.name)
			}
		}
		switch {
		case len(names) == 1:
			return all[slices.IndexFunc(all, func(o object) bool { return o.kind == kind && o.name == names[0] })], nil
		case len(names) > 1:
			return object{}, fmt.Errorf("%s has several objects of kind %s (%s); choose one with --object", path, kind, strings.Join(names, ", "))
		}
	}
	if name != "" {
		return object{}, fmt.Errorf("%s has no %s named %s; correct --object", path, kinds[0], name)
	}
	return object{}, fmt.Errorf("%s has no %s; write one of them there", path, strings.Join(kinds, " and no "))
}

// find returns the Outbox of a name: of the file, else of another one of the same folder.
func find(path string, all []object, name, namespace string) (object, error) {
	is := func(o object) bool {
		return o.kind == "Outbox" && o.name == name && (o.namespace == namespace || o.namespace == "" || namespace == "")
	}
	if i := slices.IndexFunc(all, is); i >= 0 {
		return all[i], nil
	}
	others, _ := filepath.Glob(filepath.Join(filepath.Dir(path), "*.y*ml")) // the pattern is right
	for _, other := range others {
		text, err := os.ReadFile(other)
		if err != nil || !strings.Contains(string(text), "kind: Outbox\n") {
			continue
		}
		objects, err := read(other)
		if i := slices.IndexFunc(objects, is); i >= 0 {
			return objects[i], nil
		}
		if err != nil && strings.Contains(string(text), "name: "+name) {
			return object{}, fmt.Errorf("%s: %w", other, err)
		}
	}
	return object{}, fmt.Errorf("spec.outboxRef.name: no Outbox named %s is in %s or in a file of the same folder; write it there", name, path)
}

// locator finds the keys of Secrets and ConfigMaps.
type locator struct{ dir string }

// file is where a key is: in its file; without one in the environment variable of its name, or for the dispatchers'
// connection string in DATABASE_URL.
func (l locator) file(r spec.Ref) string {
	path := filepath.Join(l.dir, r.Path())
	if _, err := os.Stat(path); err == nil {
		return path
	}
	names := []string{Variable(r)}
	if r.DSN {
		names = append(names, "DATABASE_URL")
	}
	for _, name := range names {
		if os.Getenv(name) != "" {
			return spec.Variable + name
		}
	}
	return path
}

// Variable is the environment variable that has a key when no file has it: its name and key in capitals, such as
// ORDERS_DB_DSN.
func Variable(r spec.Ref) string {
	return strings.Map(func(c rune) rune {
		if c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' {
			return c
		}
		return '_'
	}, strings.ToUpper(r.Secret+r.ConfigMap+"_"+r.Key))
}
