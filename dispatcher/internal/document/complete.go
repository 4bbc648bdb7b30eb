package document

import (
	"encoding/json"
	"errors"
	"regexp"
	"time"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/spec/rules"
	"github.com/outbox-operator/outbox-operator/api/spec/schema"
)

// Complete returns settings that were made in Go with the defaults of their sink and their message, when an object with the same
// would be valid. Where a file is set, the reference to its key need not be. It fails with the API
// server's words, but without the values, which may be secrets.
func Complete(c spec.Config) (spec.Config, error) {
	d := spec.Dispatcher{Namespace: "any", Topics: c.Topics, OutboxRef: &spec.OutboxRef{Name: "any"}, Delivery: spec.Delivery{Timeout: spec.Duration(time.Hour)}, Sink: c.Sink, Message: c.Message}
	made := spec.Copy(&d)
	made.Refer()
	text, err := json.Marshal(map[string]any{"apiVersion": apiVersion, "kind": "OutboxDispatcher", "metadata": map[string]any{"name": "any"}, "spec": made})
	if err != nil {
		return c, err
	}
	object, err := schema.Decode(text)
	if err != nil {
		return c, err
	}
	var problems []error
	for _, problem := range rules.Check(schema.Of("OutboxDispatcher"), object) {
		problems = append(problems, errors.New(value.ReplaceAllString(problem.Error(), "$1")))
	}
	if err := errors.Join(problems...); err != nil {
		return c, err
	}
	if text, err = json.Marshal(object.(map[string]any)["spec"]); err == nil {
		err = json.Unmarshal(text, made) // the paths of files stay
	}
	c.Sink, c.Message = made.Sink, made.Message
	c.Sink.ApplyDefaults()
	return c, err
}

// value is a text that the API server quotes.
var value = regexp.MustCompile(`(Invalid value: )"(?:[^"\\]|\\.)*": `)
