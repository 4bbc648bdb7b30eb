package natssink

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
)

// streamNames is where JetStream says which streams take a subject.
const streamNames = "$JS.API.STREAM.NAMES"

// probeStream asks which streams take the subject. A user who may not ask learns it from a delivery.
func (s *sink) probeStream(ctx, limited context.Context, ses *session) error {
	question, err := json.Marshal(map[string]string{"subject": s.subject})
	if err != nil {
		return err
	}
	names, err := ses.ask(limited, streamNames, question)
	m := &nats.Msg{Subject: s.subject}
	switch {
	case errors.Is(err, errDenied):
		return s.probeRight(ctx, limited, ses)
	case errors.Is(err, errNoStream):
		return s.outcome(ctx, limited, ses, m, errNoStream)
	case err != nil && ctx.Err() == nil && limited.Err() != nil:
		return dispatcher.Unavailable(reason.With(reason.ConnectionFailed, fmt.Errorf("subject %s at %s: JetStream does not say which stream takes it: %w; bring most of the servers back",
			s.subject, s.servers, reason.TimedOut("no answer in time"))))
	case err != nil:
		return s.unreachable(ctx, err)
	}
	var answer struct {
		Streams []string     `json:"streams"`
		Error   *streamError `json:"error"`
	}
	switch err := json.Unmarshal(names, &answer); {
	case err != nil:
		return s.outcome(ctx, limited, ses, m, errNoAck)
	case answer.Error != nil:
		return dispatcher.Unavailable(s.outcome(ctx, limited, ses, m, answer.Error))
	case len(answer.Streams) == 0:
		return s.outcome(ctx, limited, ses, m, errNoStream)
	case s.stream != "" && !slices.Contains(answer.Streams, s.stream):
		return s.outcome(ctx, limited, ses, m, &streamError{Code: otherStream, Description: "expected stream does not match"})
	}
	return s.probeRight(ctx, limited, ses)
}

// userInfo is where a server says what the user of a connection may do, from version 2.10 on.
const userInfo = "$SYS.REQ.USER.INFO"

// probeRight asks whether the user may publish to the subject. One who may not ask, as one who may publish
// to few subjects, learns it from a delivery.
func (s *sink) probeRight(ctx, limited context.Context, ses *session) error {
	var answer struct {
		Data struct {
			Permissions struct {
				Publish struct{ Allow, Deny []string }
			}
		}
	}
	if text, err := ses.ask(limited, userInfo, nil); err == nil {
		_ = json.Unmarshal(text, &answer) // of what is no answer, nothing is known
	}
	may := answer.Data.Permissions.Publish
	covers := func(pattern string) bool { return covers(pattern, s.subject) }
	if len(may.Allow) > 0 && !slices.ContainsFunc(may.Allow, covers) || slices.ContainsFunc(may.Deny, covers) {
		return s.outcome(ctx, limited, ses, &nats.Msg{Subject: s.subject}, errDenied)
	}
	return nil
}

// covers reports whether a subject with wildcards covers one without.
func covers(pattern, subject string) bool {
	want, have := strings.Split(pattern, "."), strings.Split(subject, ".")
	for i, token := range want {
		switch {
		case i >= len(have):
			return false
		case token == ">":
			return true
		case token != "*" && token != have[i]:
			return false
		}
	}
	return len(want) == len(have)
}

// Limit is the server's max_payload.
func (s *sink) Limit(ctx context.Context) (bytes int, setting string) {
	s.mu.Lock()
	ses := s.open()
	s.mu.Unlock()
	defer ses.retire()
	if ses.wait(ctx) != nil {
		return 0, ""
	}
	return int(ses.conn.MaxPayload()), "the server's max_payload"
}

// ask has a question answered. That the user may not ask it is errDenied, which comes before the answer to
// a flush; otherwise an answer comes, or the server's word that nobody gives one, which is errNoStream.
func (ses *session) ask(ctx context.Context, subject string, question []byte) ([]byte, error) {
	inbox := ses.conn.NewInbox()
	sub, err := ses.conn.SubscribeSync(inbox)
	if err == nil {
		err = ses.conn.PublishRequest(subject, inbox, question)
	}
	if err == nil {
		err = ses.conn.FlushWithContext(ctx)
	}
	if denied := ses.conn.LastError(); err == nil && isDenied(denied, subject) {
		err = errDenied
	}
	if err != nil {
		return nil, err
	}
	answer, err := sub.NextMsgWithContext(ctx)
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return nil, errNoStream
	case err != nil:
		return nil, err
	}
	return answer.Data, nil
}
