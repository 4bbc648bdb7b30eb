package consumer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
)

// Upcasters bring the payloads of an event type from the key's schema version to the next one (RULE-010-021): from 1 to 2,
// from 2 to 3.
type Upcasters map[string]map[int]func(payload []byte) ([]byte, error)

// Apply brings e's payload, step by step, to the version after the last upcaster of its type, and notes that version in e's
// header, so that a second Apply does nothing. A type without upcasters and a version that is newer than all of them stay as
// they are: fields that your code does not know are ignored by [Event.Decode]. Call it within the effect. Its
// error is a [Refused].
func (u Upcasters) Apply(e *Event) error {
	steps := u[e.EventType]
	if len(steps) == 0 {
		return nil
	}
	version, err := e.SchemaVersion()
	if err != nil {
		return Refuse(err)
	}
	var latest int
	for from := range steps {
		latest = max(latest, from+1)
	}
	payload := e.Payload
	for ; version < latest; version++ {
		step := steps[version]
		if step == nil {
			return Refuse(fmt.Errorf("event %s of type %s has schema_version %d, and there is no upcaster from it; add one, there are those from %v",
				e.ID, e.EventType, version, versions(steps)))
		}
		if payload, err = step(payload); err != nil {
			return Refuse(fmt.Errorf("event %s of type %s: from schema_version %d to %d: %w", e.ID, e.EventType, version, version+1, err))
		}
	}
	e.Payload = payload
	if e.Headers == nil {
		e.Headers = map[string]string{}
	}
	e.Headers[versionHeader] = strconv.Itoa(version)
	return nil
}

func versions[T any](steps map[int]T) []int {
	all := make([]int, 0, len(steps))
	for version := range steps {
		all = append(all, version)
	}
	slices.Sort(all)
	return all
}

// Fields makes an upcaster of a function that changes the fields of a JSON object. Numbers are [json.Number], and keep
// their digits.
func Fields(change func(fields map[string]any) error) func([]byte) ([]byte, error) {
	return func(payload []byte) ([]byte, error) {
		var fields map[string]any
		if err := decodeJSON(payload, &fields); err != nil {
			return nil, err
		}
		if fields == nil {
			return nil, errors.New("the payload is null, and no object")
		}
		if err := change(fields); err != nil {
			return nil, err
		}
		var out bytes.Buffer
		encoder := json.NewEncoder(&out)
		encoder.SetEscapeHTML(false)
		err := encoder.Encode(fields)
		return bytes.TrimSuffix(out.Bytes(), []byte("\n")), err
	}
}
