package status

import (
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// BriefPath is where a dispatcher serves a brief Status, which every caller may have. On [Path] only
// callers on the process's own machine or in its pod get more.
const BriefPath = Path + "?brief"

// MaxBrief bounds the JSON of a brief Status, in bytes.
const MaxBrief = 58 << 10

// briefText is the most bytes of a text in a brief Status whose tag does not say another number.
const briefText = 40

// Brief is the Status for callers who may be anyone, and for the operator. Its JSON has at most MaxBrief bytes, whatever the
// Status holds. The tag brief of a field says what it keeps of the field: "-" nothing; of a text so many bytes; of a list so many
// entries and, after a comma, so many bytes of each of their texts. No key, no id of an event and no error of a single delivery is
// kept, and no event type that is longer than its bound, because a part of a name is none.
func (s Status) Brief() Status {
	brief := s
	bound(reflect.ValueOf(&brief).Elem(), 0, 0)
	brief.EventTypes = slices.DeleteFunc(brief.EventTypes, func(t EventType) bool { return !slices.Contains(s.EventTypes, t) })
	return brief
}

// bound replaces what a value holds by a copy within the tags of its fields: of a list so many entries, of texts so many bytes,
// where 0 is what the tags say alone.
func bound(v reflect.Value, entries, bytes int) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(clip(v.String(), bytes))
	case reflect.Pointer:
		if !v.IsNil() {
			to := reflect.New(v.Type().Elem())
			to.Elem().Set(v.Elem())
			bound(to.Elem(), 0, bytes)
			v.Set(to)
		}
	case reflect.Slice:
		v.Set(reflect.AppendSlice(reflect.Zero(v.Type()), v.Slice(0, min(v.Len(), entries))))
		for i := range v.Len() {
			bound(v.Index(i), 0, bytes)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			field, tag := v.Type().Field(i), v.Type().Field(i).Tag.Get("brief")
			switch {
			case !field.IsExported():
			case tag == "-":
				v.Field(i).SetZero()
			default:
				entries, limit := bounds(field.Type.Kind(), tag)
				if limit == 0 || bytes > 0 && bytes < limit {
					limit = bytes
				}
				bound(v.Field(i), entries, limit)
			}
		}
	}
}

// bounds reads a tag.
func bounds(kind reflect.Kind, tag string) (entries, bytes int) {
	first, second, _ := strings.Cut(tag, ",")
	if kind == reflect.Slice {
		entries, _ = strconv.Atoi(first)
		first = second
	}
	if bytes, _ = strconv.Atoi(first); bytes == 0 && kind == reflect.String {
		bytes = briefText
	}
	return entries, bytes
}

// clip returns at most so many bytes of a text, without control characters, which JSON writes as six bytes.
// A text that is cut does not keep the whole one in memory.
func clip(text string, limit int) string {
	cut := text
	if len(text) > limit {
		end := limit - len("…")
		for end > 0 && !utf8.RuneStart(text[end]) {
			end--
		}
		cut = text[:end] + "…"
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(cut, ""))
}
