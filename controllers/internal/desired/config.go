package desired

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/spec/schema"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

// DispatcherName is the name of the dispatchers in logs, metrics and status.
func DispatcherName(obd *v1alpha1.OutboxDispatcher) string { return obd.Namespace + "/" + obd.Name }

// dispatcherFile has the objects that the dispatchers load, without what they do not read. outbox is the one that the
// dispatcher refers to, nil for none.
func dispatcherFile(obd *v1alpha1.OutboxDispatcher, outbox *v1alpha1.Outbox) string {
	s := obd.Spec
	s.Replicas, s.State, s.Pods = nil, "", spec.Pods{Log: s.Pods.Log} // the state has a file of its own, which pods read again
	if s.Database != nil {
		own := *s.Database
		own.MigrationSecretRef, s.Database = nil, &own
	}
	all := []string{document(kindOutboxDispatcher, obd, s)}
	if outbox != nil && s.OutboxRef != nil {
		o := outbox.Spec
		o.Migration, o.ReplayLogin, o.Journal = nil, nil, nil
		all = append(all, document(kindOutbox, outbox, o))
	}
	return strings.Join(all, separator)
}

// migrationFile has the Outbox that a migration Job loads: with the login that migrates, and with the dispatchers' and that of
// replays, whose rights it grants. A dispatcher's own database is written as the Outbox that says the same.
func migrationFile(o Owner) string {
	var s spec.Outbox
	switch o := o.(type) {
	case *v1alpha1.Outbox:
		s = spec.Copy(o.Spec)
	case *v1alpha1.OutboxDispatcher:
		s = o.Spec.Database.Outbox()
	}
	s.Retention, s.Notify, s.Migration.PodTemplate = spec.Retention{}, nil, nil
	if s.ReplayLogin != nil {
		s.ReplayLogin.PodTemplate = nil
	}
	return document(kindOutbox, o, s)
}

// separator is between the documents of a file.
const separator = "---\n"

// document is an object as `kubectl apply` takes it, without the values that the API sets by default: so a file has no field
// that its spec does not use, and a dispatcher that does not know the field yet can read it.
func document(kind string, o Owner, s any) string {
	metadata := map[string]any{"namespace": o.GetNamespace(), "name": o.GetName()}
	if kind == kindDeadLetterReplay {
		metadata["uid"] = o.GetUID()
	}
	object := map[string]any{"apiVersion": v1alpha1.GroupVersion.String(), "kind": kind, "metadata": metadata, "spec": members(s)}
	text, err := spec.YAML(schema.Of(kind).Compact(object))
	if err != nil {
		panic(fmt.Sprintf("render %T: %v", s, err)) // plain data only
	}
	return string(text)
}

// refs are the keys of Secrets and ConfigMaps that the specs name, for a login.
func refs(from spec.Objects, login spec.Login) []spec.Ref {
	_, named := from.Config(login, spec.Ref.Path)
	return named
}

// DispatcherRefs are what the dispatchers read. A running pod reads what changed again (CONTRACT C-102).
// outbox is the one that it refers to, nil for none.
func DispatcherRefs(obd *v1alpha1.OutboxDispatcher, outbox *v1alpha1.Outbox) []spec.Ref {
	from := spec.Objects{Name: DispatcherName(obd), Dispatcher: &obd.Spec}
	if outbox != nil && obd.Spec.OutboxRef != nil {
		from.Outbox, from.OutboxField = &outbox.Spec, "Outbox "+outbox.Name+": spec"
	}
	return refs(from, spec.LoginDispatcher)
}

// MigrationRefs are what the migration Job of the dispatcher's own database reads: its own login, and the dispatchers'. None
// when the operator does not migrate.
func MigrationRefs(obd *v1alpha1.OutboxDispatcher) []spec.Ref {
	if obd.Spec.OutboxRef != nil || obd.Spec.Database == nil || obd.Spec.Database.MigrationSecretRef == nil {
		return nil
	}
	return refs(spec.Objects{Dispatcher: &spec.Dispatcher{Database: obd.Spec.Database}}, spec.LoginMigration)
}

// OutboxRefs are what an Outbox's migration Job reads: its own login, the dispatchers', and that of replays.
func OutboxRefs(o *v1alpha1.Outbox) []spec.Ref {
	if !migrates(o.Spec.Migration) {
		return nil
	}
	named := outboxRefs(o, "spec", spec.LoginMigration)
	for _, ref := range outboxRefs(o, "spec", spec.LoginReplay) {
		ref.Optional = true // a replay's login that is not there stops no migration
		named = append(named, ref)
	}
	return named
}

// outboxRefs are the keys for a login of an Outbox, whose fields begin with field.
func outboxRefs(o *v1alpha1.Outbox, field string, login spec.Login) []spec.Ref {
	s := o.Spec
	s.Notify = nil
	return refs(spec.Objects{Outbox: &s, OutboxField: field}, login)
}

func migrates(m *spec.Migration) bool { return m != nil && m.Policy != spec.MigrationNone }

// members are what the JSON of a struct has.
func members(of any) (all map[string]any) {
	text, err := json.Marshal(of)
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	if err != nil {
		panic(fmt.Sprintf("members of %T: %v", of, err)) // plain data only
	}
	return all
}
