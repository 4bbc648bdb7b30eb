package manager

import (
	"reflect"
	"time"
)

// bytesOf is what the parts of a value take that are not in it.
func bytesOf(v reflect.Value) (n int64) {
	switch v.Kind() {
	case reflect.String:
		return int64(v.Len())
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			n = int64(v.Elem().Type().Size()) + bytesOf(v.Elem())
		}
	case reflect.Slice:
		n = int64(v.Cap()) * int64(v.Type().Elem().Size())
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return n
		}
		for i := range v.Len() {
			n += bytesOf(v.Index(i))
		}
	case reflect.Map:
		for each := v.MapRange(); each.Next(); {
			n += 2*int64(v.Type().Key().Size()+v.Type().Elem().Size()) + bytesOf(each.Key()) + bytesOf(each.Value())
		}
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			return 0 // it has the zone, which all share
		}
		for i := range v.NumField() {
			n += bytesOf(v.Field(i))
		}
	}
	return n
}
