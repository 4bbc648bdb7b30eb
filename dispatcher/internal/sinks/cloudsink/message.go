package cloudsink

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/cloudevents/sdk-go/v2/event"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/cloudevent"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/draft"
)

// message is an event as a service takes it.
type message struct {
	id, key     string
	alone       bool   // no other event has the key: it is the event's id
	contentType string // empty for a bare message
	body        []byte
	// attributes are CloudEvents' with the prefix of the service's binding.
	attributes map[string]string
	to         string // the name of its queue or topic
	at         int    // its place among those of the delivery
}

// attributeType is the type that AWS counts with each attribute.
const attributeType = "String"

// size is what services count, at most.
func (m *message) size() int {
	n := len(m.body) + len("content-type") + len(m.contentType) + len(attributeType) + 2*len(m.key)
	for name, value := range m.attributes {
		n += len(name) + len(value) + len(attributeType)
	}
	return n
}

// encoder returns the encoder of a mode. prefix is that of the attributes' names; keep are the ones
// that stand next to the body with contentMode Structured.
func encoder(kind string, mode spec.ContentMode, prefix string, keep ...string) func(*dispatcher.Event) (*message, error) {
	return func(e *dispatcher.Event) (*message, error) {
		ce := cloudevent.New(e)
		m := &message{id: e.ID.String(), key: e.Key(), alone: e.Key() == e.ID.String(), attributes: map[string]string{}}
		set := func(name, value string) { m.attributes[name] = value }
		for _, h := range e.Message.Headers {
			set(h.Name, h.Value)
		}
		if len(keep) == 0 { // there is room in addition to the attributes
			cloudevent.Trace(e, set)
		}
		if e.Message.Bare {
			m.body = e.Payload
			return m, nil
		}
		all := map[string]string{}
		if err := cloudevent.Attributes(ce, func(name, value string) { all[name] = value }); err != nil {
			return nil, err
		}
		if mode == spec.Binary {
			m.contentType, m.body = all["datacontenttype"], e.Payload
			delete(all, "datacontenttype")
			for name, value := range all {
				m.attributes[prefix+name] = value
			}
			m.addOwnHeaders(kind, e)
			return m, nil
		}
		for _, name := range keep {
			if all[name] != "" {
				m.attributes[prefix+name] = all[name]
			}
		}
		m.addOwnHeaders(kind, e)
		var err error
		m.contentType = event.ApplicationCloudEventsJSON
		m.body, err = cloudevent.JSON(ce)
		return m, err
	}
}

// addOwnHeaders adds the row's headers under their own names, as far as the message has room: their attributes have them all.
func (m *message) addOwnHeaders(kind string, e *dispatcher.Event) {
	cloudevent.OwnHeaders(kind, e, func(name, value string) {
		if kind != "pubSub" || len(m.attributes)+1 < pubsubAttributes { // content-type is one
			m.attributes[name] = value
		}
	})
}

// shortKey is the key itself, or its SHA-256 in hex when the service does not take it as a group.
func shortKey(key string, most int, forbidden func(rune) bool) string {
	if len(key) <= most && (forbidden == nil || !strings.ContainsFunc(key, forbidden)) {
		return key
	}
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}

var _ draft.Sink = (*sink)(nil)

// Draft implements [draft.Sink].
func (s *sink) Draft(_ context.Context, e *dispatcher.Event) (draft.Message, error) {
	made, err := s.message(e)
	if err != nil {
		return draft.Message{}, err
	}
	m := draft.Message{To: s.name(made.to), Key: made.key, Body: made.body, Headers: made.attributes}
	if s.group != nil {
		m.Key = s.group(made)
	}
	if made.contentType != "" {
		m.Headers["content-type"] = made.contentType
	}
	return m, nil
}
