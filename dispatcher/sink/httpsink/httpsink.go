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

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/config"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/files"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/reason"
)

const (
	defaultTimeout   = 10 * time.Second
	defaultBatchSize = 100
	// maxDrain is how much of an answer's body is read, so that the connection can be used again.
	maxDrain = 64 << 10
)

type sink struct {
	mode      config.HTTPMode
	batchSize int
	timeout   time.Duration
	url       *url.URL
	// target is the URL as errors name it: without query (CONTRACT C-73).
	target string
	header http.Header
	// authorization is the value of the header of that name, or "".
	authorization *files.Watched[string]
	client        *files.Watched[*client]
}

var _ dispatcher.Sink = (*sink)(nil)

// New returns a sink for cfg. It fails when cfg contradicts itself; files and the destination are
// first looked at by Probe and Deliver, so that what is wrong with them can heal.
func New(cfg config.HTTPSink) (dispatcher.Sink, error) {
	s, err := build(cfg)
	if err != nil {
		return nil, err // not s, which would be a Sink that holds nil
	}
	return s, nil
}

func build(cfg config.HTTPSink) (*sink, error) {
	u, err := parseURL(cfg.URL)
	if err != nil {
		return nil, err
	}
	s := &sink{mode: cfg.Mode, batchSize: 1, timeout: cfg.Timeout.D(), url: u}
	s.target = (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath}).String()
	if s.timeout == 0 {
		s.timeout = defaultTimeout
	}
	switch cfg.Mode {
	case "":
		s.mode = config.Binary
	case config.Binary, config.Structured:
	case config.Batch:
		s.batchSize = cfg.BatchSize
		if s.batchSize == 0 {
			s.batchSize = defaultBatchSize
		}
	default:
		return nil, fmt.Errorf("http sink: mode %q is unknown; use Binary, Structured or Batch", cfg.Mode)
	}
	if s.timeout < 0 || s.batchSize < 1 {
		return nil, errors.New("http sink: timeout and batchSize must be positive; correct them, or leave them out for their defaults")
	}
	if s.header, err = headers(cfg.Headers); err != nil {
		return nil, err
	}
	if s.authorization, err = newAuthorization(cfg.Auth); err != nil {
		return nil, err
	}
	if s.client, err = newClient(cfg.TLS, u, s.timeout); err != nil {
		return nil, err
	}
	return s, nil
}

// parseURL never quotes the URL: it may hold a password.
func parseURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil, u.Scheme != "http" && u.Scheme != "https", u.Hostname() == "":
		return nil, errors.New("http sink: url is not an http:// or https:// URL with a host; write it as https://host/path")
	case u.User != nil:
		return nil, errors.New("http sink: url holds a user or password; put them into files and name those in auth.basic")
	}
	u.Fragment, u.RawFragment = "", ""
	return u, nil
}

// BatchSize is 1, and in mode Batch the configured size.
func (s *sink) BatchSize() int { return s.batchSize }

// Deliver posts the batch: in mode Batch with one request, else with one for each event. A batch
// that is refused for what may be one event's fault is sent again, event by event.
func (s *sink) Deliver(ctx context.Context, batch []*dispatcher.Event) []error {
	if s.mode == config.Batch {
		err := s.post(ctx, batch)
		var refused refusedContent
		if len(batch) == 1 || !errors.As(err, &refused) {
			return slices.Repeat([]error{err}, len(batch))
		}
	}
	errs := make([]error, len(batch))
	for i := range batch {
		errs[i] = s.post(ctx, batch[i:i+1])
	}
	return errs
}

// current returns what the files hold now. Without it nothing can be sent.
func (s *sink) current() (c *client, authorization string, err error) {
	if authorization, err = s.authorization.Get(); err != nil {
		return nil, "", dispatcher.Unavailable(reason.With(reason.AuthenticationFailed, fmt.Errorf("http sink: %w", err)))
	}
	if c, err = s.client.Get(); err != nil {
		return nil, "", dispatcher.Unavailable(reason.With(reason.CertificateInvalid, fmt.Errorf("http sink: %w", err)))
	}
	return c, authorization, nil
}

// post sends one request and says what became of it.
func (s *sink) post(ctx context.Context, events []*dispatcher.Event) error {
	client, authorization, err := s.current()
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	req, sent, err := s.request(limited, events)
	if err != nil {
		return err
	}
	if authorization != "" {
		req.Header["Authorization"] = []string{authorization}
	}
	// RoundTrip, not http.Client: no redirects, no cookies, and no URL in its errors.
	resp, err := client.RoundTrip(req)
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return s.interrupted(ctx)
	case sent.maybe() && !reason.IsCertificateRefused(err):
		return s.broken(limited, err)
	default:
		return s.unreachable(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusSwitchingProtocols { // whose body is the open connection
		// The status is the answer; a body that cannot be read changes nothing.
		_, _ = io.CopyN(io.Discard, resp.Body, maxDrain)
	}
	return s.answered(resp)
}

// Probe connects to the destination without sending anything.
func (s *sink) Probe(ctx context.Context) error {
	client, _, err := s.current()
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	err = client.connect(limited, s.url)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return s.interrupted(ctx)
	default:
		return s.unreachable(err)
	}
}

// Close closes the connections that nobody uses.
func (s *sink) Close(context.Context) error {
	if client, err := s.client.Get(); err == nil {
		client.CloseIdleConnections()
	}
	return nil
}
