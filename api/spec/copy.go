package spec

import "reflect"

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
