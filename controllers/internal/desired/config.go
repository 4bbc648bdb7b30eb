package desired

import (
	"encoding/json"
	"errors"
	"fmt"
	"path"

	strictjson "sigs.k8s.io/json"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

// DispatcherName is the name of the dispatchers in logs, metrics and status.
func DispatcherName(obd *v1alpha1.OutboxDispatcher) string { return obd.Namespace + "/" + obd.Name }

// Config is the file that the dispatchers load, without the values that they fill in by default. The state has a file
// of its own, which pods read again. outbox is the one that the dispatcher refers to, nil for none.
func Config(obd *v1alpha1.OutboxDispatcher, outbox *v1alpha1.Outbox) spec.Config {
	return withoutDefaults(func() spec.Config { return whole(obd, outbox) })
}

func whole(obd *v1alpha1.OutboxDispatcher, outbox *v1alpha1.Outbox) spec.Config {
	c, _ := withRefs(obd, outbox)
	return c
}

// withRefs returns the whole file, and the keys whose files it names.
func withRefs(obd *v1alpha1.OutboxDispatcher, outbox *v1alpha1.Outbox) (spec.Config, []Ref) {
	from := sources(obd, outbox)
	delete(from.Dispatcher, "state") // it has a file of its own
	c, refs := settings(from, spec.DispatcherLogin)
	c.StateFile, c.VerifiedTypesFile = stateFile, typesFile(obd)
	c.NeedsVerifiedTypes = false // it has the file
	c.Server.Address = fmt.Sprintf(":%d", Port)
	return c, refs
}

// sources are the specs that say what the dispatchers do. outbox is the one that the dispatcher refers to, nil for none.
func sources(obd *v1alpha1.OutboxDispatcher, outbox *v1alpha1.Outbox) spec.Objects {
	from := spec.Objects{Name: DispatcherName(obd), Dispatcher: converted[map[string]any](obd.Spec)}
	if outbox != nil && obd.Spec.OutboxRef != nil {
		from.Outbox, from.OutboxField = converted[map[string]any](outbox.Spec), "Outbox "+outbox.Name+": spec"
	}
	return from
}

// settings are the settings of the specs, and the keys that they name.
func settings(from spec.Objects, login spec.Login) (spec.Config, []Ref) {
	c, named, err := from.Config(login, func(r spec.Ref) string {
		if r.Dir == spec.SchemasDir {
			return path.Join(schemasDir, r.File)
		}
		return refOf(r).File()
	})
	if err != nil {
		panic(fmt.Sprintf("settings of %s: %v", from.Name, err)) // the tests of this package find a field that only one side has
	}
	var refs []Ref
	for _, r := range named {
		if r.Dir != spec.SchemasDir { // see SchemaRefs
			refs = append(refs, refOf(r))
		}
	}
	return c, refs
}

// databaseOf is what the objects say of the outbox's database, whose fields begin with at.
func databaseOf(o Owner, at string) spec.Objects {
	switch o := o.(type) {
	case *v1alpha1.OutboxDispatcher:
		return spec.Objects{Dispatcher: map[string]any{"database": converted[map[string]any](o.Spec.Database)}}
	case *v1alpha1.Outbox:
		outbox := converted[map[string]any](o.Spec)
		delete(outbox, "notify")
		return spec.Objects{Outbox: outbox, OutboxField: at}
	}
	panic(fmt.Sprintf("%T has no database", o))
}

// migrationConfigs are the files that a migration Job loads: of the login that migrates, and of the
// dispatchers', whose rights it grants. They have no more than a connection, and the first one the journal, which that
// login sets: so a change of it makes another Job, and rolls no pods.
func migrationConfigs(o Owner) (migrates, dispatches spec.Config) {
	file := func(login spec.Login) spec.Config {
		return withoutDefaults(func() spec.Config {
			c, _ := settings(databaseOf(o, "spec"), login)
			return spec.Config{Name: o.GetNamespace() + "/" + o.GetName(), Database: c.Database, Journal: c.Journal}
		})
	}
	return file(spec.MigrationLogin), file(spec.DispatcherLogin)
}

// converted is [convert] into a new value.
func converted[T any](from any) (to T) {
	convert(from, &to)
	return to
}

// convert writes from, by way of JSON, into the value at to. A field of from that to lacks is a fault of the program,
// which the tests of this package find.
func convert(from, to any) {
	text, err := json.Marshal(from)
	if err == nil {
		var unknown []error
		unknown, err = strictjson.UnmarshalStrict(text, to)
		err = errors.Join(append(unknown, err)...)
	}
	if err != nil {
		panic(fmt.Sprintf("convert %T to %T: %v", from, to, err))
	}
}

// render is the file of plain data, which a pod reads.
func render(data any) string {
	b, err := spec.YAML(data)
	if err != nil {
		panic(fmt.Sprintf("render %T: %v", data, err)) // plain data only
	}
	return string(b)
}
