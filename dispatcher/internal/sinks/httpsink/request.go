package httpsink

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/base"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/cloudevent"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/draft"
)

// headers returns what every request carries.
func headers(configured map[string]string) http.Header {
	agent := "outbox-dispatcher"
	if v := base.Version(); v != "" {
		agent += "/" + v
	}
	h := http.Header{"User-Agent": {agent}}
	for name, value := range configured {
		h.Set(name, value)
	}
	return h
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
		return ce.DataEncoded, cloudevent.Attributes(ce, binaryHeader(header).attribute)
	}
	if s.mode == spec.Structured {
		header["Content-Type"] = []string{event.ApplicationCloudEventsJSON}
		return cloudevent.JSON(cloudevent.New(events[0]))
	}
	var body bytes.Buffer
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

func (h binaryHeader) attribute(name, value string) {
	if name == "datacontenttype" {
		http.Header(h).Set("Content-Type", value)
	} else {
		// The canonical form: names have no dash, so only the first character is a capital.
		h["Ce-"+strings.ToUpper(name[:1])+name[1:]] = []string{cloudevent.PercentEncode(value)}
	}
}

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
