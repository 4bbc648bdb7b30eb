package httpsink

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/base"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/cloudevent"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/draft"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/files"
)

// headers returns what every request carries.
func headers(configured []spec.HTTPHeader) http.Header {
	agent := "outbox-dispatcher"
	if v := base.Version(); v != "" {
		agent += "/" + v
	}
	h := http.Header{"User-Agent": {agent}}
	for _, c := range configured {
		h.Set(c.Name, c.Value)
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
type sending struct{ connected, kept, wroteHeaders, responded atomic.Bool }

var errSent = errors.New("not sent again: the destination may have received it")

func (s *sending) trace() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		// net/http requests another connection only after one on which nothing was written, or
		// after again allowed it.
		GetConn: func(string) { s.connected.Store(false) },
		GotConn: func(got httptrace.GotConnInfo) {
			s.connected.Store(true)
			c, secure := got.Conn.(*tls.Conn) // in HTTP/2 a stream ends alone
			s.kept.Store(got.Reused && (!secure || c.ConnectionState().NegotiatedProtocol != "h2"))
		},
		WroteHeaders:         func() { s.wroteHeaders.Store(true) },
		GotFirstResponseByte: func() { s.responded.Store(true) },
	}
}

// unanswered reports whether the connection was kept from before, and brought no byte of a response.
func (s *sending) unanswered() bool { return s.kept.Load() && !s.responded.Load() }

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

const (
	secretPrefix = "whsec_"
	// What the Standard Webhooks specification says of a secret's length.
	minSecret, maxSecret = 24, 64
)

// secrets are the keys that a request is signed with, none for no signature.
type secrets [][]byte

// newSigning returns the secrets of the file, none without one.
func newSigning(path string) *files.Watched[secrets] {
	if path == "" {
		return files.Watch(func() (secrets, error) { return nil, nil })
	}
	return files.Watch(func() (secrets, error) { return readSecrets(path) }, path)
}

// readSecrets reads one secret from each line, or from between spaces.
func readSecrets(path string) (keys secrets, err error) {
	content, err := files.Read("signingSecretRef", path)
	if err != nil {
		return nil, err
	}
	for n, word := range bytes.Fields(content) {
		text, prefixed := strings.CutPrefix(string(word), secretPrefix)
		key, err := base64.StdEncoding.DecodeString(text)
		if !prefixed || err != nil || len(key) < minSecret || len(key) > maxSecret {
			return nil, fmt.Errorf("signingSecretRef: secret %d in %s is none of Standard Webhooks; write %s and %d to %d random bytes in base64",
				n+1, path, secretPrefix, minSecret, maxSecret)
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("signingSecretRef: %s is empty; write the secret into it", path)
	}
	return keys, nil
}

// sign adds the headers of Standard Webhooks: one signature for each secret, so that a consumer may
// know the old or the new one while they change.
func (keys secrets) sign(header http.Header, events []*dispatcher.Event, body []byte, now time.Time) {
	if len(keys) == 0 {
		return
	}
	id, stamp := webhookID(events), strconv.FormatInt(now.Unix(), 10)
	signatures := make([]string, len(keys))
	for i, key := range keys {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(id + "." + stamp + "."))
		mac.Write(body)
		signatures[i] = "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	}
	header["Webhook-Id"] = []string{id}
	header["Webhook-Timestamp"] = []string{stamp}
	header["Webhook-Signature"] = []string{strings.Join(signatures, " ")}
}

// webhookID is the event's id; of several events, an id made from theirs, the same whenever the same
// events go together.
func webhookID(events []*dispatcher.Event) string {
	if len(events) == 1 {
		return events[0].ID.String()
	}
	ids := make([]byte, 0, len(uuid.UUID{})*len(events))
	for _, e := range events {
		ids = append(ids, e.ID[:]...)
	}
	return uuid.NewSHA1(uuid.Nil, ids).String()
}
