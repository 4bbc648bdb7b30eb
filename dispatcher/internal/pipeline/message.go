package pipeline

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"golang.org/x/text/language"
	"golang.org/x/text/message"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/expression"
)

// preset is what a format is short for.
type preset struct {
	// headers are as message.headers, which may replace them.
	headers map[string]string
	// payload is a transformation that comes after all others.
	payload string
	// to is a route, where neither routes nor the sink's topic says otherwise.
	to string
}

var presets = map[spec.MessageFormat]preset{
	spec.FormatDebezium: {
		headers: map[string]string{"id": `event.id`},
		to:      `"outbox.event." + (has(event.aggregateType) ? event.aggregateType : event.topic)`,
	},
	spec.FormatStorage: {
		headers: map[string]string{
			"event_type": `event.type`, "aggregate_id": `event.aggregateId`, "correlation_id": `event.headers.?correlation_id`,
		},
		payload: `with(payload, {"metadata": with(event.headers, {"outbox_id": event.headers.?outbox_id.orValue(event.id), "sequence_number": has(event.aggregateSequence) ? event.aggregateSequence : event.sequence})})`,
	},
}

// envelope is what messages look like apart from the payload; nil for CloudEvents alone.
type envelope struct {
	bare    bool
	headers []header // in the order of their names
	// readsPayload is true when one of them does.
	readsPayload bool
}

type header struct {
	name, field string
	value       *expression.Expression
}

// envelope compiles the section, and adds to the pipeline what its format is short for.
func (c *compiler) envelope(p *Pipeline, cfg spec.Config) *envelope {
	short := presets[cfg.Message.Format]
	if k := cfg.Sink.Kafka; short.to != "" && len(cfg.Sink.Routes) == 0 && k != nil && k.Topic == "" {
		p.routes = append(p.routes, route{"message.format", nil, c.expression("message.format", short.to, expression.String)})
	}
	if short.payload != "" {
		p.transforms = append(p.transforms, &transform{"message.format", "message.format", nil, c.expression("message.format", short.payload, expression.JSON)})
	}
	headers := maps.Clone(short.headers)
	if headers == nil {
		headers = map[string]string{}
	}
	for _, h := range cfg.Message.Headers {
		headers[h.Name] = h.Expression
	}
	if len(headers) == 0 && !cfg.Message.Bare() {
		return nil
	}
	m := &envelope{bare: cfg.Message.Bare()}
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		field := fmt.Sprintf("message.headers[%q]", name)
		value := c.expression(field, headers[name], expression.Header)
		m.headers = append(m.headers, header{name, field, value})
		m.readsPayload = m.readsPayload || value != nil && value.ReadsPayload()
	}
	return m
}

// of computes what the message of an event looks like. The payload is the one that is sent.
func (m *envelope) of(ctx context.Context, e *dispatcher.Event, payload any) (dispatcher.Message, error) {
	made := dispatcher.Message{Bare: m.bare}
	for _, h := range m.headers {
		value, err := h.value.Header(ctx, e, payload)
		switch {
		case err != nil && ctx.Err() != nil:
			return made, interrupted(ctx.Err())
		case err != nil:
			return made, uncomputed(dispatcher.Cause{Class: dispatcher.ClassMessage, Code: h.field}, Finding{Field: h.field}, e, h.field, h.value, err, "or what is enqueued")
		case value != "":
			made.Headers = append(made.Headers, dispatcher.Header{Name: h.name, Value: value})
		}
	}
	return made, nil
}

// lineColumn is where a byte of a text is.
func lineColumn(text []byte, offset int64) string {
	before := text[:min(max(offset, 0), int64(len(text)))]
	return fmt.Sprintf("line %d, column %d", 1+bytes.Count(before, []byte("\n")), len(before)-bytes.LastIndexByte(before, '\n'))
}

// at is the line and column of the value that the tokens of a JSON pointer lead to, or of the last one on the
// way that is there.
func at(text []byte, tokens []string) string {
	decoder := json.NewDecoder(bytes.NewReader(text))
	found := int64(0)
	for {
		found = value(text, decoder.InputOffset())
		opening, err := decoder.Token()
		if err != nil || len(tokens) == 0 || !enter(decoder, opening, tokens[0]) {
			return lineColumn(text, found)
		}
		tokens = tokens[1:]
	}
}

// value is where the value after an offset begins.
func value(text []byte, offset int64) int64 {
	for offset < int64(len(text)) && bytes.IndexByte([]byte(" \t\r\n:,"), text[offset]) >= 0 {
		offset++
	}
	return offset
}

// enter reads up to the member or element that a token names, after the opening token.
func enter(decoder *json.Decoder, opening json.Token, name string) bool {
	for i := 0; decoder.More(); i++ {
		is := opening == json.Delim('[') && name == strconv.Itoa(i)
		if opening == json.Delim('{') {
			key, err := decoder.Token()
			if err != nil {
				return false
			}
			is = key == name
		}
		if is {
			return true
		}
		var skipped json.RawMessage
		if decoder.Decode(&skipped) != nil {
			return false
		}
	}
	return false
}

// misplaced says where a text is not JSON.
func misplaced(text []byte, err error) string {
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &syntax):
		return lineColumn(text, syntax.Offset-1) + ": "
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return lineColumn(text, int64(len(text))) + ": "
	}
	return ""
}

// invalid says where and why a text is not a JSON Schema: of several causes the first.
func invalid(text []byte, err error) string {
	var meta *jsonschema.SchemaValidationError
	var cause *jsonschema.ValidationError
	if !errors.As(err, &meta) || !errors.As(meta.Err, &cause) {
		return strings.Join(strings.Fields(err.Error()), " ")
	}
	for len(cause.Causes) > 0 {
		cause = cause.Causes[0]
	}
	_, pointer, _ := strings.Cut(meta.URL, "#/")
	var place []string
	if pointer != "" {
		for _, token := range strings.Split(pointer, "/") {
			place = append(place, strings.NewReplacer("~1", "/", "~0", "~").Replace(token))
		}
	}
	place = append(place, cause.InstanceLocation...)
	return fmt.Sprintf("%s: at /%s: %s", at(text, place), strings.Join(place, "/"), cause.ErrorKind.LocalizedString(message.NewPrinter(language.English)))
}
