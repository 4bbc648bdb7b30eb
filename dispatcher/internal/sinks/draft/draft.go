// Package draft is a message that a sink would send, for comparing two configurations.
package draft

import (
	"bytes"
	"context"
	"maps"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// Sink is a sink that says what it would send.
type Sink interface {
	dispatcher.Sink
	// Draft makes the message of an event as Deliver makes it, and sends nothing. It connects to nothing, but to
	// the schema registry where the message is encoded by a schema of it. Its errors are Deliver's. What is made
	// again for each sending, as a signature or a login, is not in the message.
	Draft(ctx context.Context, e *dispatcher.Event) (Message, error)
}

// Message is what a sink would send.
type Message struct {
	// To is where in the destination: a URL without its query, a topic, a subject, an exchange with a key.
	To string
	// At are the servers of the destination. Empty where To has them.
	At string
	// Key is what the message is partitioned by. Empty where the destination has no such thing.
	Key string
	// Query of a URL, which may be secret.
	Query string
	// Body is the payload as it is sent, with the attributes where they are in it.
	Body []byte
	// Headers are the attributes and properties outside the body.
	Headers map[string]string
}

// The parts of a message, as [Message.Differs] names them.
const (
	Body    = "body"
	Headers = "headers"
	Key     = "key"
	Query   = "query"
)

// Elsewhere reports whether two messages go to different places.
func (m Message) Elsewhere(other Message) bool { return m.To != other.To || m.At != other.At }

// Differs names the parts that differ, but where the messages go.
func (m Message) Differs(other Message) (parts []string) {
	for _, part := range []struct {
		name    string
		differs bool
	}{
		{Body, !bytes.Equal(m.Body, other.Body)},
		{Headers, !maps.Equal(m.Headers, other.Headers)},
		{Key, m.Key != other.Key},
		{Query, m.Query != other.Query},
	} {
		if part.differs {
			parts = append(parts, part.name)
		}
	}
	return parts
}
