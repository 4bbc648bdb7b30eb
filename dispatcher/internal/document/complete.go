package document

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/spec/rules"
	"github.com/outbox-operator/outbox-operator/api/spec/schema"
)

// Complete returns settings that were made in Go with the defaults of their sink and their message, when an object with the same
// would be valid. It fails with the API server's words, but without the values, which may be secrets.
func Complete(c spec.Config) (spec.Config, error) {
	text, err := json.Marshal(map[string]any{"sink": c.Sink, "message": c.Message})
	if err != nil {
		return c, err
	}
	decoded, err := schema.Decode(text)
	if err != nil {
		return c, err
	}
	files, settings := map[string]string{}, decoded.(map[string]any)
	members := map[string]any{
		"namespace": "any", "outboxRef": map[string]any{"name": "any"}, "delivery": map[string]any{"timeout": "1h"},
		"sink": back{files, "value"}.value(settings["sink"]), "message": back{files, "expression"}.value(settings["message"]),
	}
	object := map[string]any{"apiVersion": apiVersion, "kind": "OutboxDispatcher", "metadata": map[string]any{"name": "any"}, "spec": members}
	var problems []error
	for _, problem := range rules.Check(schema.Of("OutboxDispatcher"), object) {
		problems = append(problems, errors.New(value.ReplaceAllString(problem.Error(), "$1")))
	}
	if err := errors.Join(problems...); err != nil {
		return c, err
	}
	made, _, err := spec.Objects{Dispatcher: members}.Config(spec.DispatcherLogin, func(r spec.Ref) string { return files[r.Path()] })
	if err != nil {
		return c, err
	}
	if p := c.Sink.Postgres; p != nil && p.DSN != "" {
		made.Sink.Postgres.DSN, made.Sink.Postgres.DSNFile = p.DSN, ""
	}
	c.Sink, c.Message = made.Sink, made.Message
	c.Sink.ApplyDefaults()
	return c, nil
}

// value is a text that the API server quotes.
var value = regexp.MustCompile(`(Invalid value: )"(?:[^"\\]|\\.)*": `)

// back makes members of an object of settings: the way back of [spec.Objects.Config].
type back struct {
	// files are those that the settings name, by the paths of the keys that stand for them in the object.
	files map[string]string
	// header is what a header has next to its name.
	header string
}

// references are the members of an object that name a key, by those of settings that name its file.
var references = map[string]string{
	"secretFile": "secretRef", "dsnFile": "secretRef", "dsn": "secretRef", "signingSecretFile": "signingSecretRef", "file": "configMapRef",
	"caFile": "caSecretRef", "clientCertFile": "clientCertSecretRef", "clientKeyFile": "clientKeySecretRef",
}

func (b back) value(v any) any {
	switch v := v.(type) {
	case map[string]any:
		members := map[string]any{}
		for _, name := range slices.Sorted(maps.Keys(v)) {
			b.member(members, name, v[name])
		}
		return members
	case []any:
		for i := range v {
			v[i] = b.value(v[i])
		}
	}
	return v
}

func (b back) member(members map[string]any, name string, v any) {
	text, _ := v.(string)
	headers, _ := v.(map[string]any)
	switch {
	case name == "usernameFile": // secretFile was before it
		secret, _ := members["secretRef"].(map[string]any)
		b.files[fmt.Sprint(secret["name"], "/username")] = text
		members["usernameKey"] = "username"
	case references[name] != "" && text != "":
		secret := fmt.Sprintf("file-%d", len(b.files))
		b.files[secret+"/key"] = text
		members[references[name]] = map[string]any{"name": secret, "key": "key"}
	case name == "headers":
		list := []any{}
		for _, header := range slices.Sorted(maps.Keys(headers)) {
			list = append(list, map[string]any{"name": header, b.header: headers[header]})
		}
		members[name] = list
	default:
		members[name] = b.value(v)
	}
}
