package desired

import (
	"reflect"
	"slices"

	"github.com/outbox-operator/outbox-operator/api/spec"
)

// withoutDefaults leaves out each value that a dispatcher fills in by default. So a file has no field that its spec does
// not use, and a dispatcher that does not know the field yet can read it. Each call of build makes the same configuration.
func withoutDefaults(build func() spec.Config) spec.Config {
	made, candidate := build(), build()
	all, candidates := scalars(&made), scalars(&candidate)
	given := snapshot(all)
	candidate.ApplyDefaults()
	want := snapshot(candidates)
	for i := range all {
		if given[i].IsZero() {
			continue
		}
		for j := range candidates {
			candidates[j].Set(given[j])
		}
		candidates[i].SetZero()
		candidate.ApplyDefaults()
		if slices.EqualFunc(candidates, want, same) {
			all[i].SetZero()
		}
	}
	return made
}

// snapshot are the values that the variables have now.
func snapshot(variables []reflect.Value) (now []reflect.Value) {
	for _, v := range variables {
		now = append(now, reflect.ValueOf(v.Interface()))
	}
	return now
}

func same(a, b reflect.Value) bool {
	if a.Kind() != reflect.Pointer || a.IsNil() || b.IsNil() {
		return a.Equal(b)
	}
	return a.Elem().Equal(b.Elem())
}

// scalars are the single values of a configuration, always in the same order. Lists have no defaults.
func scalars(c *spec.Config) (all []reflect.Value) {
	var visit func(v reflect.Value)
	visit = func(v reflect.Value) {
		switch v.Kind() {
		case reflect.Pointer:
			if v.Type().Elem().Kind() != reflect.Struct {
				all = append(all, v)
			} else if !v.IsNil() {
				visit(v.Elem())
			}
		case reflect.Struct:
			for field, value := range v.Fields() {
				if field.Tag.Get("json") != "-" { // spec.Access, which is not in the file
					visit(value)
				}
			}
		case reflect.Slice, reflect.Map:
		default:
			all = append(all, v)
		}
	}
	visit(reflect.ValueOf(c).Elem())
	return all
}
