// Package httpsink posts events to a URL as CloudEvents 1.0, in the binary, structured or batched
// mode of the CloudEvents HTTP binding. Package cloudevent says which attributes they carry.
//
// dispatcher/sink/http.md has the settings, guarantees, outcomes and how to secure it.
package httpsink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/base"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/files"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
)

// maxDrain is how much of a response's body is read, so that the connection can be used again.
const maxDrain = 64 << 10

// maxCapture is how much of it is kept with captureResponse.
const maxCapture = 1 << 10

type sink struct {
	mode      spec.ContentMode
	batchSize int
	timeout   time.Duration
	capture   bool // the response of the destination is kept
	base      target
	// route leads from base to where an event goes; nil for base itself.
	route  func(*dispatcher.Event) (string, error)
	header http.Header
	// slots are taken by requests, when they are bounded.
	slots   chan struct{}
	signing *files.Watched[secrets]
	// authorization is the value of the header of that name, or "".
	authorization *files.Watched[string]
	client        *files.Watched[*client]
}

var _ dispatcher.Sink = (*sink)(nil)

// New returns a sink for cfg. It fails when cfg contradicts itself; files and the destination are
// first looked at by Probe and Deliver, so that what is wrong with them can heal. route says which path
// an event goes to, from the configured URL; nil is that URL.
func New(cfg spec.HTTPSink, route func(*dispatcher.Event) (string, error)) (dispatcher.Sink, error) {
	return base.Made(build(cfg, route))
}

func build(cfg spec.HTTPSink, route func(*dispatcher.Event) (string, error)) (*sink, error) {
	cfg.ApplyDefaults()
	u, err := url.Parse(cfg.URL)
	if err != nil {
		return nil, errors.New("sink.http.url cannot be read; correct it") // not err, which quotes it
	}
	u.Fragment, u.RawFragment = "", ""
	s := &sink{
		mode: cfg.ContentMode, batchSize: max(1, int(cfg.BatchSize)), timeout: cfg.Timeout.D(), capture: cfg.CaptureResponse == spec.CaptureBody, base: newTarget(u), route: route,
		header: headers(cfg.Headers), authorization: newAuthorization(cfg.Auth), signing: newSigning(cfg.SigningSecretFile),
		client: newClient(cfg.TLS, cfg.Timeout.D(), int(cfg.MaxConnections)),
	}
	if cfg.MaxConnections > 0 {
		s.slots = make(chan struct{}, cfg.MaxConnections)
	}
	return s, nil
}

// BatchSize is 1, and with contentMode Batch the configured size.
func (s *sink) BatchSize() int { return s.batchSize }

// Deliver posts the batch: with contentMode Batch with one request for each target, else with one for each event.
func (s *sink) Deliver(ctx context.Context, batch []*dispatcher.Event) (errs []error) {
	defer reason.Classify("http", &errs)
	errs = make([]error, len(batch))
	for _, p := range s.groups(batch, errs) {
		for i, err := range s.deliver(ctx, p.to, p.events) {
			errs[p.at[i]] = err
		}
	}
	return errs
}

// deliver posts events to one target. A batch that is refused for what may be one event's fault is sent
// again, event by event.
func (s *sink) deliver(ctx context.Context, to target, events []*dispatcher.Event) []error {
	if s.mode == spec.Batch {
		err := s.post(ctx, to, events)
		var refused refusedContent
		if len(events) == 1 || !errors.As(err, &refused) {
			return slices.Repeat([]error{err}, len(events))
		}
	}
	return dispatcher.InOrder(events, func(i int, _ *dispatcher.Event) error { return s.post(ctx, to, events[i:i+1]) })
}

// KeepsOrder implements [dispatcher.Ordered]: one request has all events of a batch, in their order, but with routes.
func (s *sink) KeepsOrder() bool { return s.route == nil }

// credentials are what the files say of who we are.
type credentials struct {
	authorization string
	secrets       secrets
}

// current returns what the files hold now. Without it nothing can be sent.
func (s *sink) current() (c *client, own credentials, err error) {
	if own.authorization, err = s.authorization.Get(); err == nil {
		own.secrets, err = s.signing.Get()
	}
	if err != nil {
		return nil, own, dispatcher.Unavailable(reason.With(reason.AuthenticationFailed, fmt.Errorf("http sink: %w", err)))
	}
	if c, err = s.client.Get(); err != nil {
		return nil, own, dispatcher.Unavailable(reason.With(reason.CertificateInvalid, fmt.Errorf("http sink: %w", err)))
	}
	return c, own, nil
}

// enter waits until a request may be sent.
func (s *sink) enter(ctx context.Context) (leave func(), err error) {
	if s.slots == nil {
		return func() {}, nil
	}
	select {
	case s.slots <- struct{}{}:
		return func() { <-s.slots }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// post sends one request and says what became of it.
func (s *sink) post(ctx context.Context, to target, events []*dispatcher.Event) error {
	leave, err := s.enter(ctx)
	if err != nil {
		return to.interrupted(ctx)
	}
	defer leave()
	client, own, err := s.current()
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	req, sent, err := s.request(limited, to, events, own)
	if err != nil {
		return err
	}
	// RoundTrip, not http.Client: no redirects, no cookies, and no URL in its errors.
	resp, err := client.RoundTrip(req)
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return to.interrupted(ctx)
	case sent.maybe() && !reason.IsCertificateRefused(err):
		return s.broken(limited, to, sent, err)
	default:
		if reason.IsCertificateRefused(err) {
			s.client.LookAgain()
		}
		return s.unreachable(to, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden {
		s.authorization.LookAgain()
		s.signing.LookAgain()
	}
	err = to.explain(resp, events[0].ClaimedAt)
	if resp.StatusCode == http.StatusSwitchingProtocols { // whose body is the open connection
		return err
	}
	// The status is the response; a body that cannot be read changes nothing.
	if s.capture && err != nil {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, maxCapture))
		err = dispatcher.WithResponse(string(body), err)
	}
	_, _ = io.CopyN(io.Discard, resp.Body, maxDrain)
	return err
}

// Probe connects to the destination without sending anything.
func (s *sink) Probe(ctx context.Context) error {
	client, _, err := s.current()
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	err = client.connect(limited, s.base.url)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return s.base.interrupted(ctx)
	default:
		return s.unreachable(s.base, err)
	}
}

// Close closes the connections that no delivery uses.
func (s *sink) Close(context.Context) error {
	if client, err := s.client.Get(); err == nil {
		client.CloseIdleConnections()
	}
	return nil
}

// newAuthorization returns the value of the header Authorization, "" for none.
func newAuthorization(auth *spec.Auth) *files.Watched[string] {
	if auth == nil {
		return files.Watch(func() (string, error) { return "", nil })
	}
	return files.Watch(func() (string, error) { return files.Authorization("auth", auth) }, files.AuthorizationPaths(auth)...)
}
