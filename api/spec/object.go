package spec

import (
	"bytes"
	"encoding/json"
	"maps"
	"path"
	"slices"
)

// Objects are the specs that say what a process does, as YAML or JSON has them. They must be valid.
//
// +kubebuilder:object:generate=false
type Objects struct {
	// Name is what the process calls itself, such as the namespace and the name of the OutboxDispatcher. Required.
	Name string
	// Dispatcher is the spec of an OutboxDispatcher. Nil for what needs no more than a database.
	Dispatcher map[string]any
	// Outbox is the spec of the Outbox that Dispatcher refers to, if it does.
	Outbox map[string]any
	// OutboxField begins the names of the fields of Outbox, as in "spec".
	OutboxField string
}

// Ref is one key of a Secret or ConfigMap that a spec names.
//
// +kubebuilder:object:generate=false
type Ref struct {
	// Secret or ConfigMap is the name of the one that has the key; the other is empty.
	Secret, ConfigMap string
	Key               string
	// DSN is whether the key is a connection string of the outbox's database.
	DSN bool
	// Field is the field of the spec that names it.
	Field string
}

// Path is the key's file below the folder of a process's Secrets and ConfigMaps: NAME/KEY.
func (r Ref) Path() string { return path.Join(r.Secret+r.ConfigMap, r.Key) }

// A Login is whose login is used.
type Login int

// The logins.
const (
	// DispatcherLogin is the dispatchers'.
	DispatcherLogin Login = iota
	// MigrationLogin is the login of migrations, where the spec has one, else the dispatchers'.
	MigrationLogin
	// ReplayLogin is the login of replays, where the spec has one, else the dispatchers'.
	ReplayLogin
)

// Config returns the settings of a process, without defaults, and the keys that it reads. file says where the process
// finds a key. A section of a spec is the section of the same name: see member. It fails for a field that there is not.
func (o Objects) Config(login Login, file func(Ref) string) (c Config, refs []Ref, err error) {
	f := &files{file: file}
	field, of, db, err := o.database()
	if err != nil {
		return c, nil, err
	}
	if db != nil {
		switch {
		case login == MigrationLogin:
			c.Database, c.Journal = f.migration(field, db), db.Journal
		case login == ReplayLogin && db.ReplayLogin != nil:
			c.Database = f.replay(field, db)
		default:
			c.Database = f.database(field, db)
		}
		c.Retention = db.Retention
		if of["notify"] != nil {
			c.Notify = &Notify{}
			if err := convert(f.value(field+".notify", copied(of["notify"])), c.Notify); err != nil {
				return c, nil, err
			}
		}
	}
	settings := map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(o.Dispatcher)) {
		if slices.Contains(elsewhere, name) {
			continue
		}
		section := copied(o.Dispatcher[name])
		if delivery, ok := section.(map[string]any); ok && name == "delivery" {
			c.NeedsVerifiedTypes = delivery["consumerPolicy"] == "Verified"
			delete(delivery, "consumerPolicy")
		}
		if f.member(settings, "spec."+name, name, section); f.err != nil {
			return c, nil, f.err
		}
	}
	if pods, ok := o.Dispatcher["pods"].(map[string]any); ok && pods["log"] != nil {
		settings["log"] = pods["log"]
	}
	if err := convert(settings, &c); err != nil {
		return c, nil, err
	}
	c.Name = o.Name
	if o.Dispatcher["outboxRef"] != nil {
		c.Retention.Scope = ScopeOutbox // all dispatchers of an Outbox have its retention, and one of them sweeps for all
	}
	return c, renamed(f.refs), nil
}

// elsewhere are the sections of a spec that make other settings than their own: what is in the Outbox, and what the pods are.
var elsewhere = []string{"outboxRef", "database", "replicas", "pods"}

// convert writes from, by way of JSON, into the value at to. It fails for a field that to has not.
func convert(from, to any) error {
	text, err := json.Marshal(from)
	if err != nil {
		return err
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	return decoder.Decode(to)
}

// loosely is convert for a value that may have more fields.
func loosely(from, to any) error {
	text, err := json.Marshal(from)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, to)
}

// copied is a copy of a value of JSON.
func copied(v any) any {
	switch v := v.(type) {
	case map[string]any:
		c := map[string]any{}
		for name, member := range v {
			c[name] = copied(member)
		}
		return c
	case []any:
		c := slices.Clone(v)
		for i := range c {
			c[i] = copied(c[i])
		}
		return c
	}
	return v
}
