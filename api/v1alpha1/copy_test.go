package v1alpha1

import (
	"reflect"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// Whatever is written to a copy of an object, the object stays; and specs and statuses have only what package spec copies.
func TestCopiesShareNothing(t *testing.T) {
	for _, made := range []func() runtime.Object{
		func() runtime.Object { return &OutboxDispatcher{} }, func() runtime.Object { return &Outbox{} },
		func() runtime.Object { return &OutboxConsumer{} }, func() runtime.Object { return &DeadLetterReplay{} },
	} {
		from, same := made(), made()
		need.That(t, reflect.DeepEqual(from.DeepCopyObject(), from), "the copy of an empty object is %+v", from.DeepCopyObject())
		fill(t, from, 1)
		fill(t, same, 1)
		copied := from.DeepCopyObject()
		need.That(t, reflect.DeepEqual(copied, from), "the copy is %+v, want %+v", copied, from)
		fill(t, copied, 2)
		need.That(t, reflect.DeepEqual(from, same), "it changed with its copy: it is %+v, want %+v", from, same)
	}
}

// fill writes n to every place of the spec and the status of an object.
func fill(t *testing.T, o runtime.Object, n int64) {
	t.Helper()
	for _, part := range []string{"Spec", "Status"} {
		write(t, reflect.ValueOf(o).Elem().FieldByName(part), n)
	}
}

// write writes n to every place of v, through its pointers and slices.
func write(t *testing.T, v reflect.Value, n int64) {
	t.Helper()
	switch v.Kind() {
	case reflect.Struct:
		for _, field := range v.Fields() {
			if field.CanSet() {
				write(t, field, n)
			}
		}
	case reflect.Pointer:
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		write(t, v.Elem(), n)
	case reflect.Slice:
		if v.IsNil() {
			v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		}
		for i := range v.Len() {
			write(t, v.Index(i), n)
		}
	case reflect.String:
		v.SetString(string(rune('a' + n)))
	case reflect.Bool:
		v.SetBool(n == 1)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(n)
	case reflect.Uint8:
		v.SetUint(uint64(n))
	default:
		t.Fatalf("spec.Copy does not copy a %s", v.Type())
	}
}
