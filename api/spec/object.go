package spec

import (
	"path"
	"reflect"
)

// Objects are the specs that say what a process does. They must be valid, with the defaults of their definitions.
type Objects struct {
	// Name is what the process calls itself, such as the namespace and the name of the OutboxDispatcher. Required.
	Name string
	// Dispatcher is the spec of an OutboxDispatcher. Nil for what needs no more than a database.
	Dispatcher *Dispatcher
	// Outbox is the spec of the Outbox that Dispatcher refers to, if it does.
	Outbox *Outbox
	// OutboxField begins the names of the fields of Outbox, as in "spec".
	OutboxField string
}

// Ref is one key of a Secret or ConfigMap that a spec names.
type Ref struct {
	// Secret or ConfigMap is the name of the one that has the key; the other is empty.
	Secret, ConfigMap string
	Key               string
	// DSN is whether the key is a connection string of the outbox's database.
	DSN bool
	// Optional is whether the process runs without the key.
	Optional bool
	// Field is the field of the spec that names it.
	Field string
}

// Path is the key's file below the folder of a process's Secrets and ConfigMaps: NAME/KEY.
func (r Ref) Path() string { return path.Join(r.Secret+r.ConfigMap, r.Key) }

// A Login is whose login is used.
type Login int

// The logins.
const (
	// LoginDispatcher is the dispatchers'.
	LoginDispatcher Login = iota
	// LoginMigration is the login of migrations, where the spec has one, else the dispatchers'.
	LoginMigration
	// LoginReplay is the login of replays, where the spec has one, else the dispatchers'.
	LoginReplay
)

// Config returns the settings of a process, and the keys that it reads. file says where the process finds a key. The specs
// stay as they are.
func (o Objects) Config(login Login, file func(Ref) string) (c Config, refs []Ref) {
	f := &files{file: file}
	if o.Dispatcher != nil {
		c.Dispatcher = *Copy(o.Dispatcher)
	}
	if field, db := o.database(); db != nil {
		db = Copy(db)
		switch {
		case login == LoginMigration:
			c.Database, c.Journal = f.migration(field, db), db.Journal
		case login == LoginReplay && db.ReplayLogin != nil:
			c.Database, c.ReplayLogin = f.replay(field, db), true
		default:
			c.Database = f.database(field, db)
		}
		c.Retention, c.Notify = db.Retention, db.Notify
		if n := c.Notify; n != nil {
			f.auth(field+".notify.auth", n.Auth)
			n.SigningSecretFile = f.secret(field+".notify.signingSecretRef", n.SigningSecretRef, "secret")
			f.tls(field+".notify.tls", n.TLS)
		}
	}
	if r := c.Message.SchemaRegistry; r != nil {
		f.auth("spec.message.schemaRegistry.auth", r.Auth)
		f.tls("spec.message.schemaRegistry.tls", r.TLS)
	}
	f.schemas(c.Message.Validation)
	f.sink(&c.Sink)
	c.Name, c.Retention.Scope = o.Name, ScopeDispatcher
	if c.OutboxRef != nil {
		c.Retention.Scope = ScopeOutbox // all dispatchers of an Outbox have its retention, and one of them sweeps for all
	}
	return c, f.refs
}

// Copy returns a copy of v, and of all that its pointers and slices lead to: neither changes with the other. It is for specs and
// statuses, which have no maps and interfaces. What fields that are not exported lead to, as those of a time, is shared.
func Copy[T any](v T) T {
	separate(reflect.ValueOf(&v).Elem())
	return v
}

// separate puts copies in the place of what v shares with the value that it was copied from.
func separate(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if field := v.Field(i); field.CanSet() {
				separate(field)
			}
		}
	case reflect.Pointer:
		if !v.IsNil() {
			its := reflect.New(v.Type().Elem())
			its.Elem().Set(v.Elem())
			separate(its.Elem())
			v.Set(its)
		}
	case reflect.Slice:
		if !v.IsNil() {
			its := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
			reflect.Copy(its, v)
			if kind := v.Type().Elem().Kind(); kind == reflect.Struct || kind == reflect.Pointer || kind == reflect.Slice {
				for i := range its.Len() {
					separate(its.Index(i))
				}
			}
			v.Set(its)
		}
	}
}

// DeepCopyInto makes out a copy of d, for the generated copies of objects.
func (d *Dispatcher) DeepCopyInto(out *Dispatcher) { *out = Copy(*d) }

// DeepCopyInto makes out a copy of o, for the generated copies of objects.
func (o *Outbox) DeepCopyInto(out *Outbox) { *out = Copy(*o) }

// DeepCopyInto makes out a copy of r, for the generated copies of objects.
func (r *Replay) DeepCopyInto(out *Replay) { *out = Copy(*r) }
