package httpsink

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cloudevents/sdk-go/v2/binding"
	names "github.com/cloudevents/sdk-go/v2/binding/spec"
	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/cloudevents/sdk-go/v2/types"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/cloudevent"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/draft"
)

// headers returns what every request carries.
func headers(configured map[string]string) http.Header {
	h := http.Header{"User-Agent": {userAgent()}}
	for name, value := range configured {
		h.Set(name, value)
	}
	return h
}

// userAgent is outbox-dispatcher with the version of this module, where the build knows it.
func userAgent() string {
	const name, module = "outbox-dispatcher", "github.com/outbox-operator/outbox-operator"
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return name
	}
	for _, m := range append(info.Deps, &info.Main) {
		if m.Path == module && m.Version != "" && m.Version != "(devel)" {
			return name + "/" + m.Version
		}
	}
	return name
}

// request returns the request for the events, and what will be known about its sending.
func (s *sink) request(ctx context.Context, to target, events []*dispatcher.Event, own credentials) (*http.Request, *sending, error) {
	header, body, err := s.content(events)
	if err != nil {
		return nil, nil, err
	}
	own.secrets.sign(header, events, body, time.Now())
	if own.authorization != "" {
		header["Authorization"] = []string{own.authorization}
	}
	sent := &sending{}
	req := (&http.Request{
		Method: http.MethodPost, URL: to.url, Host: to.url.Host, Header: header,
		Body:          io.NopCloser(bytes.NewReader(body)),
		ContentLength: int64(len(body)),
		GetBody:       func() (io.ReadCloser, error) { return sent.again(body) },
	}).WithContext(httptrace.WithClientTrace(ctx, sent.trace()))
	return req, sent, nil
}

// encode adds the headers of the mode and returns the body.
func (s *sink) encode(header http.Header, events []*dispatcher.Event) ([]byte, error) {
	if s.mode == spec.Binary {
		ce := cloudevent.New(events[0])
		if events[0].Message.Bare {
			header["Content-Type"] = []string{event.ApplicationJSON}
			return ce.DataEncoded, nil
		}
		return ce.DataEncoded, (*binding.EventMessage)(&ce).ReadBinary(context.Background(), binaryHeader(header))
	}
	var body bytes.Buffer
	if s.mode == spec.Structured {
		header["Content-Type"] = []string{event.ApplicationCloudEventsJSON}
		ce := cloudevent.New(events[0])
		err := event.WriteJson(&ce, &body)
		return body.Bytes(), err
	}
	header["Content-Type"] = []string{event.ApplicationCloudEventsBatchJSON}
	separator := byte('[')
	for _, e := range events {
		body.WriteByte(separator)
		separator = ','
		ce := cloudevent.New(e)
		if err := event.WriteJson(&ce, &body); err != nil {
			return nil, err
		}
	}
	body.WriteByte(']')
	return body.Bytes(), nil
}

// binaryHeader takes an event's attributes in the binary mode. The SDK's own writer leaves out the
// percent-encoding.
type binaryHeader http.Header

var _ binding.BinaryWriter = binaryHeader(nil)

func (h binaryHeader) SetAttribute(a names.Attribute, value any) error {
	if a.Kind() == names.DataContentType {
		http.Header(h).Set("Content-Type", value.(string))
		return nil
	}
	return h.SetExtension(a.Name(), value)
}

func (h binaryHeader) SetExtension(name string, value any) error {
	text, err := types.Format(value)
	if err != nil {
		return err
	}
	// The canonical form: names have no dash, so only the first character is a capital.
	h["Ce-"+strings.ToUpper(name[:1])+name[1:]] = []string{cloudevent.PercentEncode(text)}
	return nil
}

func (binaryHeader) Start(context.Context) error { return nil }
func (binaryHeader) SetData(io.Reader) error     { return nil }
func (binaryHeader) End(context.Context) error   { return nil }

// sending knows whether something of a request may have left this process.
type sending struct{ connected, wroteHeaders atomic.Bool }

var errSent = errors.New("not sent again: the destination may have received it")

func (s *sending) trace() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		// net/http requests another connection only after one on which nothing was written, or
		// after again allowed it.
		GetConn:      func(string) { s.connected.Store(false) },
		GotConn:      func(httptrace.GotConnInfo) { s.connected.Store(true) },
		WroteHeaders: func() { s.wroteHeaders.Store(true) },
	}
}

// maybe is true from the moment that the request has a connection: writing may have begun.
func (s *sending) maybe() bool { return s.connected.Load() || s.wroteHeaders.Load() }

// again is net/http's way to send the body a second time on another connection. It is allowed only
// when the first connection took nothing.
func (s *sending) again(body []byte) (io.ReadCloser, error) {
	if s.wroteHeaders.Load() {
		return nil, errSent
	}
	return io.NopCloser(bytes.NewReader(body)), nil
}

var _ draft.Sink = (*sink)(nil)

// Draft implements [draft.Sink]. With contentMode Batch it is a batch of one. Signature and Authorization are
// not in it.
func (s *sink) Draft(_ context.Context, e *dispatcher.Event) (draft.Message, error) {
	to, err := s.to(e)
	if err != nil {
		return draft.Message{}, err
	}
	header, body, err := s.content([]*dispatcher.Event{e})
	if err != nil {
		return draft.Message{}, err
	}
	m := draft.Message{To: to.name, Query: to.url.RawQuery, Body: body, Headers: make(map[string]string, len(header))}
	for name, values := range header {
		m.Headers[name] = strings.Join(values, "\n")
	}
	return m, nil
}

// content is what a request says of the events: its headers and its body. It is the same each time.
func (s *sink) content(events []*dispatcher.Event) (http.Header, []byte, error) {
	header := make(http.Header, len(s.header)+28)
	for name, values := range s.header {
		header[name] = values
	}
	body, err := s.encode(header, events)
	if err != nil {
		if err = cloudevent.Unwritable("http sink", events[0], err); len(events) > 1 {
			err = refusedContent{err} // each is written by itself: one of them is to blame
		}
		return nil, nil, err
	}
	if len(events) == 1 {
		cloudevent.OtherHeaders("http", events[0], func(name, value string) { header.Set(name, cloudevent.HeaderText(value)) })
	}
	return header, body, nil
}
