package natssink

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"

	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
	"github.com/outbox-operator/outbox-operator/hack/servers/nats"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// A stream that appears while the message is tried again.
func TestNewStreamTakesTheNextTry(t *testing.T) {
	srv := server(t)
	js := admin(t, srv)
	stream := "late-" + sinktest.NewEvent().ID.String()
	s := open(t, plainConfig(srv, stream))
	sent := sinktest.Watch((*sinktest.Dial)(&s.dial), isPublish)
	result := make(chan error)
	go func() { result <- sinktest.Send(t, s) }()
	<-sent
	need.OK(t, need.Err(js.CreateStream(t.Context(), jetstream.StreamConfig{Name: stream, Subjects: []string{stream + ".>"}})))
	need.Want(t, nil, "the stream was there at the second try, and Deliver fails: %v", <-result)
}

func TestServerWithoutJetStreamIsUnavailable(t *testing.T) {
	srv := start(t, nats.Options{NoJetStream: true})
	s := open(t, plainConfig(srv, "shop"))
	sinktest.Reaches(t, s, reason.Refusing, "the server has no JetStream; enable it")
}

// A subject that only others than a stream take: their responses confirm nothing.
func TestResponseWithoutAStreamFails(t *testing.T) {
	srv := server(t)
	conn := admin(t, srv).Conn()
	cfg := plainConfig(srv, "echo-"+sinktest.NewEvent().ID.String())
	cfg.Timeout = spec.Duration(500 * time.Millisecond)
	s := open(t, cfg)
	for response, text := range map[string]string{
		"{}":    "the response is not a confirmation of a stream; create one",
		"%":     "the response is not a confirmation of a stream; create one",
		"echo":  "the response is not a confirmation of a stream; create one",
		"error": "the response is an error that is not JetStream's; ",
		"":      "no confirmation within 500ms; check that the servers respond, that a stream captures",
	} {
		sub, err := conn.Subscribe(cfg.Subject, func(m *client.Msg) {
			switch response {
			case "echo":
				_ = m.Respond(m.Data)
			case "error":
				_ = m.Respond([]byte(`{"error":{"err_code":1,"description":"` + sinktest.PayloadSecret + `"}}`))
			case "":
			default:
				_ = m.Respond([]byte(response))
			}
		})
		if err == nil {
			err = conn.Flush()
		}
		need.OK(t, err)
		word := reason.Refusing
		if response == "" {
			word = reason.ConnectionFailed
		}
		// A subject that no stream takes is the configuration's; who is silent may have taken it.
		sinktest.Want(t, "a response "+response, sinktest.Send(t, s), strings.Contains(text, "not a confirmation of a stream"), word, text)
		need.OK(t, errors.Join(sub.Unsubscribe(), conn.Flush()))
	}
}

// A topic's name that is not a subject is that event's own failure, and can do no harm.
func TestBadSubjectFailsItsEventAlone(t *testing.T) {
	srv := server(t)
	stream := newStream(t, srv, nil)
	cfg := plainConfig(srv, stream)
	cfg.Subject = ""
	s := open(t, cfg)
	for _, topic := range []string{"a b", "a.>", "*", "a..b", "$JS.API.STREAM.DELETE." + stream, "_INBOX.a", strings.Repeat("a", 256)} {
		bad, good := sinktest.NewEvent(), sinktest.NewEvent()
		bad.Topic, good.Topic = topic, stream+".a"
		errs := s.Deliver(t.Context(), []*dispatcher.Event{bad, good})
		sinktest.Want(t, topic, errs[0], false, reason.Refusing, "; set subject to one without spaces and wildcards")
		need.That(t, errs[1] == nil, "an event next to %s: %v", topic, errs[1])
	}
}

// What a stream refuses, and says why.
//
// CONTRACT: C-32, C-73
func TestStreamRefusalsNameTheRemedy(t *testing.T) {
	srv := server(t)
	for _, test := range []struct {
		name   string
		change func(*jetstream.StreamConfig)
		event  *dispatcher.Event
		stream string
		class  string
		text   string
	}{
		{"too large for the stream", func(c *jetstream.StreamConfig) { c.MaxMsgSize = 5000 }, sinktest.Sized(10_000), "", "dead", "; raise the stream's max_msg_size"},
		{"too large for the server", nil, sinktest.Sized(1 << 20), "", "dead", "; raise its max_payload"},
		{"too many messages", func(c *jetstream.StreamConfig) { c.MaxMsgs, c.Discard = 1, jetstream.DiscardNew }, sinktest.Sized(10), "", "fault", "maximum messages exceeded (10077); make room"},
		{"too many bytes", func(c *jetstream.StreamConfig) { c.MaxBytes, c.Discard = 3000, jetstream.DiscardNew }, sinktest.Sized(4000), "", "fault", "maximum bytes exceeded (10077); make room"},
		{"another stream", nil, sinktest.Sized(10), "others", "unavailable", "; set stream to the one that captures the subject"},
		{"a sealed stream", nil, sinktest.Sized(10), "", "unavailable", "; let another stream capture the subject"},
	} {
		t.Run(test.name, func(t *testing.T) {
			stream := newStream(t, srv, test.change)
			s := open(t, plainConfig(srv, stream))
			if test.text == "; let another stream capture the subject" {
				js := admin(t, srv)
				need.OK(t, need.Err(js.UpdateStream(t.Context(), jetstream.StreamConfig{Name: stream, Subjects: []string{stream + ".>"}, Sealed: true})))
			} else if err := sinktest.Send(t, s); err != nil {
				t.Fatal(err)
			}
			s.stream = test.stream
			errs := s.Deliver(t.Context(), []*dispatcher.Event{test.event})
			sinktest.Want(t, "Deliver", errs[0], test.class == "unavailable", reason.Refusing, test.text)
			sinktest.IsFault(t, "Deliver", errs[0], test.class == "fault")
			if test.class == "dead" {
				sinktest.Dead(t, "Deliver", errs[0], test.text)
			}
			// Probe sees that another stream has the subject.
			err := s.Probe(t.Context())
			need.That(t, dispatcher.IsUnavailable(err) == (test.stream != ""), "Probe: %v", err)
		})
	}
}

// The headers' own limit is 64 KB. Only that one is dead.
func TestOnlyTheEventOfLongHeadersIsDead(t *testing.T) {
	srv := server(t)
	stream := newStream(t, srv, nil)
	s := open(t, plainConfig(srv, stream))
	batch := []*dispatcher.Event{sinktest.NewEvent(), sinktest.NewEvent(), sinktest.NewEvent()}
	batch[1].Headers = map[string]string{"long": strings.Repeat("7", 70_000)}
	errs := s.Deliver(t.Context(), batch)
	sinktest.Want(t, "long headers", errs[1], false, reason.Refusing, "; use contentMode Structured, or fewer and shorter headers")
	dead, _ := dispatcher.PermanentReason(errs[1])
	need.That(t, dead == dispatcher.ReasonPermanentFailure && errs[0] == nil && errs[2] == nil, "got %v", errs)
}

// The account may store no more.
func TestFullAccountIsAFault(t *testing.T) {
	srv := start(t, nats.Options{Settings: "accounts: {A: {users: [{user: a, password: a}], jetstream: {max_file: 100KB}}}\nno_auth_user: a\n"})
	stream := newStream(t, srv, nil)
	s := open(t, plainConfig(srv, stream))
	for range 20 {
		if err := s.Deliver(t.Context(), []*dispatcher.Event{sinktest.Sized(10_000)})[0]; err != nil {
			sinktest.Outcome(t, "Deliver", err, sinktest.Fault, reason.Refusing, "; raise the limits of JetStream")
			return
		}
	}
	t.Error("200 KB are in an account of 100 KB")
}

// CONTRACT: C-27, C-31, C-32
func TestNATSSinkSurvivesServerFaults(t *testing.T) {
	sinktest.Faults{
		Server: server(t),
		Open: func(t *testing.T, timeout time.Duration) sinktest.Destination {
			return destination(t, spec.NATSSink{Access: spec.Access{Timeout: spec.Duration(timeout)}})
		},
		Unconfirmed: "no confirmation within %s; check that the servers respond", Unconnected: "no response within %s; check that it runs",
	}.Run(t)
}

// A connection that breaks: what may have been sent counts as an attempt, what was not is given back.
//
// CONTRACT: C-27, C-32
func TestBrokenConnectionGivesBackWhatWasNotSent(t *testing.T) {
	srv := server(t)
	stream := newStream(t, srv, nil)
	s := open(t, plainConfig(srv, stream))
	gate := s.gate()
	need.OK(t, sinktest.Send(t, s))
	blocked := gate.shut()
	result := make(chan []error)
	go func() { result <- s.Deliver(t.Context(), large(10)) }()
	<-blocked
	gate.cut()
	errs := <-result
	sinktest.Want(t, "a message that may have been sent", errs[0], false, reason.ConnectionFailed, "the connection was lost before the confirmation; check that the servers run")
	sinktest.Want(t, "a message that was not", errs[9], true, reason.ConnectionFailed, "the connection was lost before the message was sent; check that the servers run")
	gate.open()
	need.Want(t, nil, "the next: %v", sinktest.Send(t, s))

	s = open(t, plainConfig(srv, stream))
	sent := sinktest.Watch((*sinktest.Dial)(&s.dial), isPublish)
	need.OK(t, sinktest.Send(t, s))
	<-sent
	srv.Pause()
	one := make(chan error)
	go func() { one <- sinktest.Send(t, s) }()
	<-sent
	sinktest.Kill(t, srv)
	sinktest.Want(t, "a message that was sent", <-one, false, reason.ConnectionFailed, "the connection was lost before the confirmation; check that the servers run")
	sinktest.Want(t, "the next", sinktest.Send(t, s), true, reason.ConnectionFailed, "connection refused; check that it runs")
	sinktest.Want(t, "Probe", s.Probe(t.Context()), true, reason.ConnectionFailed, "connection refused; check that it runs")
}

func large(n int) []*dispatcher.Event {
	batch := make([]*dispatcher.Event, n)
	for i := range batch {
		batch[i] = sinktest.Sized(500_000)
	}
	return batch
}

// A retry within the duplicate window is stored once, and confirmed.
//
// CONTRACT: C-27, C-42
func TestDuplicateIsStoredOnce(t *testing.T) {
	srv := server(t)
	stream := newStream(t, srv, nil)
	s := open(t, plainConfig(srv, stream))
	e := sinktest.NewEvent()
	for attempt := range 3 { // at last a replay by a person
		e.LeaseNumber = int64(attempt + 1)
		need.Want(t, nil, "attempt %d: %v", sinktest.Verify(t, s.Deliver(t.Context(), []*dispatcher.Event{e})[0]), attempt)
	}
	sinktest.Kill(t, srv)()
	for { // the connection that was killed
		if err := s.Deliver(t.Context(), []*dispatcher.Event{e})[0]; sinktest.Verify(t, err) == nil {
			break
		}
	}
	got := consume(t, srv, stream)
	need.That(t, len(got) == 1 && got[0].Headers().Get("ce-fencingtoken") == "0000000000000000001", "%d messages are stored, want the first attempt's", len(got))

	// The stream knows it also when it is gone.
	e = sinktest.NewEvent()
	deliver := func() {
		need.OK(t, s.Deliver(t.Context(), []*dispatcher.Event{e})[0])
	}
	deliver()
	all, err := admin(t, srv).Stream(t.Context(), stream)
	if err == nil {
		err = all.DeleteMsg(t.Context(), all.CachedInfo().State.LastSeq)
	}
	need.OK(t, err)
	deliver()
	need.Want(t, 1, "%d messages are stored, want one: the other was removed", len(consume(t, srv, stream)))
}
