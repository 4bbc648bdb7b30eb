package redissink

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/cloudevent"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/draft"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
)

// pipeline adds the entries at one server in one round trip, and sets their replies. It returns how many
// of the last ones the server has not read: they have no reply.
func (s *sink) pipeline(ctx, limited context.Context, address string, entries []*entry) (unread int) {
	var cmds []redis.Cmder
	adds := make([]*redis.StringCmd, len(entries))
	for i, en := range entries {
		if en.redirected {
			cmds = append(cmds, redis.NewStatusCmd(ctx, "asking"))
		}
		adds[i] = redis.NewStringCmd(ctx, en.args...)
		cmds = append(cmds, adds[i])
	}
	// Half of the time that is left, so that the reply comes in time.
	wait := redis.NewIntCmd(ctx, "wait", s.cfg.Replicas, max(1, s.left(limited).Milliseconds()/2))
	if s.cfg.Replicas > 0 {
		cmds = append(cmds, wait)
	}
	l := s.take(address)
	usable := l.do(limited, cmds)
	sent := l.sent.Load()
	if slices.ContainsFunc(adds, func(add *redis.StringCmd) bool { return isTooLarge(add.Err()) }) {
		wait = nil // which the server has not read
	}
	for i, en := range entries {
		err := adds[i].Err()
		switch {
		case adds[i].Val() != "": // added, though go-redis may give it the error of a later one
			en.err = s.replicated(ctx, en, wait)
		case !sent:
			en.err = s.unreachable(ctx, address, err)
		default:
			en.err = s.refused(ctx, en, err)
		}
		if isTooLarge(err) {
			s.learn(en)
			unread = len(entries) - i - 1
			break
		}
	}
	// Another reply may come from a server that no longer has the slot.
	if usable && !slices.ContainsFunc(cmds, func(c redis.Cmder) bool { return c.Err() != nil }) {
		s.give(l)
	} else {
		l.close()
	}
	return unread
}

// replicated is the outcome of an entry that the master has. wait is nil when no replica was waited for.
func (s *sink) replicated(ctx context.Context, en *entry, wait *redis.IntCmd) error {
	switch {
	case s.cfg.Replicas == 0:
		return nil
	case wait == nil:
		return dispatcher.DestinationFault(fmt.Errorf("stream %s at %s: the master has the event, and an event behind it was too large, so no replica was waited for; it is sent again", en.stream, en.address))
	}
	got, err := wait.Result()
	switch {
	case err == nil && got >= int64(s.cfg.Replicas):
		return nil
	case err == nil:
		return dispatcher.DestinationFault(fmt.Errorf("stream %s at %s: the master has the event, and %d of %d replicas confirmed it in time; bring replicas back, or lower replicas", en.stream, en.address, got, s.cfg.Replicas))
	default:
		return s.refused(ctx, en, err)
	}
}

// together is how many of the entries go into one pipeline. Replicas are waited for at its end, which the server does
// not read behind an entry that is too large: such a one goes alone.
func (s *sink) together(entries []*entry) int {
	limit := s.tooLarge.Load()
	if s.cfg.Replicas == 0 || limit == 0 {
		return len(entries)
	}
	switch i := slices.IndexFunc(entries, func(en *entry) bool { return en.longest() >= limit }); i {
	case -1:
		return len(entries)
	default:
		return max(i, 1)
	}
}

// learn notes what the server found too large.
func (s *sink) learn(en *entry) {
	if limit := s.tooLarge.Load(); limit == 0 || en.longest() < limit {
		s.tooLarge.Store(en.longest())
	}
}

// left is the time until the delivery's end.
func (s *sink) left(ctx context.Context) time.Duration {
	end, _ := ctx.Deadline() // there always is one
	return time.Until(end)
}

// isTooLarge reports whether the server found a value too large. Then it reads no more, and closes the
// connection.
func isTooLarge(err error) bool {
	return err != nil && redis.HasErrorPrefix(err, "Protocol error: invalid bulk length")
}

// ping makes a connection of its own, and checks whether the server takes events.
func (s *sink) ping(ctx context.Context, address string) error {
	l := s.newConnection(address)
	defer l.close()
	ping, hello := redis.NewStatusCmd(ctx, "ping"), redis.NewSliceCmd(ctx, "hello", 2)
	l.do(ctx, []redis.Cmder{ping, hello})
	if err := ping.Err(); err != nil {
		return err
	}
	for i, value := range hello.Val() { // none before Redis 6
		if value == "role" && i+1 < len(hello.Val()) && hello.Val()[i+1] != "master" {
			return errReplica
		}
	}
	return nil
}

// probeStream checks at a server whether the stream may be written. An entry with the id 0-0 is never added,
// and is refused for the lack of a right before it is for that. The key's type takes a right of its own:
// who does not have it learns from a delivery that the key is not a stream.
func (s *sink) probeStream(ctx, limited context.Context, address string) error {
	l := s.newConnection(address)
	defer l.close()
	add, kind := redis.NewStringCmd(limited, "xadd", s.stream.Only, "0-0", fieldData, ""), redis.NewStatusCmd(limited, "type", s.stream.Only)
	l.do(limited, []redis.Cmder{add, kind})
	en := &entry{stream: s.stream.Only, address: address}
	var reply redis.Error
	switch is := kind.Val(); {
	case !errors.As(add.Err(), &reply):
		return s.unreachable(ctx, address, add.Err())
	case is != "" && is != "none" && is != "stream":
		return s.noStream(en, fmt.Errorf("the key holds a %s, which is not a stream", is))
	case redis.HasErrorPrefix(reply, "NOPERM"):
		return s.explain(en, reply)
	default:
		return nil
	}
}

// errReplica is a server that only reads.
var errReplica = errors.New("it is a replica, which only reads")

// The fields that are not attributes.
const (
	fieldData  = "data"
	fieldEvent = "event"
)

// entry returns the event as an XADD (CONTRACT C-70).
func (s *sink) entry(e *dispatcher.Event) (*entry, error) {
	stream, err := s.stream.Of(e)
	if err == nil && stream == "" {
		err = errors.New("the event's stream has no name; set stream, or correct the route")
	}
	if err != nil {
		return nil, reason.Routed(fmt.Errorf("redis sink: %w", err))
	}
	f := append(make([]any, 0, 48+2*len(e.Headers)), "xadd", stream)
	if s.cfg.MaxLen > 0 {
		f = append(f, "maxlen", "~", s.cfg.MaxLen)
	}
	f = append(f, "*")
	ce := cloudevent.New(e)
	if s.cfg.ContentMode == spec.Structured {
		var body []byte
		body, err = cloudevent.JSON(ce)
		f = append(f, fieldEvent, body)
	} else {
		if !e.Message.Bare {
			err = cloudevent.Attributes(ce, func(name, value string) { f = append(f, name, value) })
		}
		f = append(f, fieldData, []byte(e.Payload))
	}
	for _, h := range e.Message.Headers {
		f = append(f, h.Name, h.Value)
	}
	if err != nil {
		return nil, cloudevent.Unwritable("redis sink", e, err)
	}
	return &entry{stream: stream, args: f}, nil
}

var _ draft.Sink = (*sink)(nil)

// Draft implements [draft.Sink].
func (s *sink) Draft(_ context.Context, e *dispatcher.Event) (draft.Message, error) {
	made, err := s.entry(e)
	if err != nil {
		return draft.Message{}, err
	}
	m := draft.Message{To: "stream " + made.stream, At: s.At, Headers: map[string]string{}}
	args := made.args
	for len(args) > 0 && args[0] != "*" { // what comes before is for the stream
		args = args[1:]
	}
	for i := 1; i+1 < len(args); i += 2 {
		switch value := args[i+1].(type) {
		case []byte:
			m.Body = value
		default:
			m.Headers[fmt.Sprint(args[i])] = fmt.Sprint(value)
		}
	}
	return m, nil
}
