package desired

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

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

// withRefs returns the whole file, and the keys whose files it names. A section of the spec is the section of the same
// name in the file: see [mounts.member].
func withRefs(obd *v1alpha1.OutboxDispatcher, outbox *v1alpha1.Outbox) (c spec.Config, refs []Ref) {
	of := obd.Spec
	// These are in the workload, in files of their own, or set below.
	of.OutboxRef, of.Database, of.Replicas, of.State = nil, nil, nil, ""
	of.Delivery.ConsumerPolicy, of.Pods = "", v1alpha1.Pods{}
	database := &mounts{dir: "database"}
	notify := &mounts{dir: "notify"}
	if field, db := outboxOf(obd, outbox); db != nil {
		c.Database, c.Retention = database.database(field, db), converted[spec.Retention](db.Retention)
		if db.Notify != nil {
			c.Notify = converted[*spec.Notify](notify.value(field+".notify", converted[any](db.Notify)))
		}
	}
	refs = append(renamed(database.refs), notify.refs...)
	file, sections := map[string]any{}, converted[map[string]any](of)
	for _, name := range slices.Sorted(maps.Keys(sections)) {
		m := &mounts{dir: name}
		m.member(file, "spec."+name, name, sections[name])
		refs = append(refs, m.refs...)
	}
	convert(file, &c)
	c.Name, c.StateFile, c.VerifiedTypesFile = DispatcherName(obd), stateFile, typesFile(obd)
	c.Log, c.Server.Address = converted[spec.Log](obd.Spec.Pods.Log), fmt.Sprintf(":%d", Port)
	if obd.Spec.OutboxRef != nil {
		c.Retention.Scope = spec.ScopeOutbox // all dispatchers of an Outbox have its retention, and one of them sweeps for all
	}
	return c, refs
}

// migrationConfigs are the files that a migration Job loads: of the login that migrates, and of the
// dispatchers', whose rights it grants. They have no more than a connection, and the first one the journal, which that
// login sets: so a change of it makes another Job, and rolls no pods.
func migrationConfigs(o Owner, db *v1alpha1.OutboxSpec) (migrates, dispatches spec.Config) {
	file := func(login func(m *mounts, field string, d *v1alpha1.OutboxSpec) spec.Database, j *v1alpha1.Journal) spec.Config {
		return withoutDefaults(func() spec.Config {
			return spec.Config{Name: o.GetNamespace() + "/" + o.GetName(), Database: login(&mounts{dir: "database"}, "", db), Journal: converted[*spec.Journal](j)}
		})
	}
	return file((*mounts).migration, db.Journal), file((*mounts).database, nil)
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
