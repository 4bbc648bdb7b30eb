package httpsink

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/files"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
)

const (
	// idleTimeout is below the five seconds after which common servers close an idle connection.
	// A request that meets a closing connection may have been received, and spends an attempt.
	idleTimeout = 4 * time.Second
	// maxIdle is the highest concurrency that a dispatcher can be given.
	maxIdle = 1000
	// refusalWait is how long a probe waits for a server to refuse our certificate. In TLS 1.3 the
	// refusal comes after the client's handshake is over.
	refusalWait = time.Second
)

// client makes the connections to the destination.
type client struct {
	*http.Transport
	// tls is what Probe uses: the transport changes its own copy.
	tls *tls.Config
}

// newClient returns the client for cfg. When a file of tls changes, a new one takes its place; the
// old one's connections are closed when they have been idle.
func newClient(cfg *spec.TLS, timeout time.Duration, maxConnections int) *files.Watched[*client] {
	if cfg == nil {
		cfg = &spec.TLS{}
	}
	return files.Watch(func() (*client, error) {
		tlsConfig, err := files.TLS(cfg)
		if err != nil {
			return nil, err
		}
		tlsConfig.NextProtos = []string{"h2", "http/1.1"}
		return &client{Transport: transport(tlsConfig.Clone(), timeout, maxConnections), tls: tlsConfig}, nil
	}, files.TLSPaths(cfg)...)
}

func transport(tlsConfig *tls.Config, timeout time.Duration, maxConnections int) *http.Transport {
	return &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            (&net.Dialer{Timeout: timeout}).DialContext,
		TLSClientConfig:        tlsConfig,
		TLSHandshakeTimeout:    timeout,
		ForceAttemptHTTP2:      true,
		MaxIdleConnsPerHost:    maxIdle,
		MaxConnsPerHost:        maxConnections,
		IdleConnTimeout:        idleTimeout,
		MaxResponseHeaderBytes: maxDrain,
		DisableCompression:     true, // the bodies of responses are not read
		// A connection that broke without notice is found by a ping; otherwise it would stay in use.
		HTTP2: &http.HTTP2Config{SendPingTimeout: timeout, PingTimeout: timeout},
	}
}

// connect opens and closes a connection as the transport would, without a request.
func (c *client) connect(ctx context.Context, u *url.URL) error {
	via, err := c.Proxy(&http.Request{URL: u})
	if err != nil {
		return err
	}
	to := u
	if via != nil {
		to = via
	}
	conn, err := c.DialContext(ctx, "tcp", net.JoinHostPort(to.Hostname(), port(to)))
	if err != nil {
		return err
	}
	defer conn.Close()
	if via == nil && u.Scheme == "https" {
		return handshake(ctx, conn, c.tls.Clone(), u.Hostname())
	}
	return nil
}

func port(u *url.URL) string {
	switch {
	case u.Port() != "":
		return u.Port()
	case u.Scheme == "https":
		return "443"
	case u.Scheme == "socks5", u.Scheme == "socks5h":
		return "1080"
	default:
		return "80"
	}
}

// handshake makes a TLS handshake, and waits for the server's refusal if it requested a certificate.
func handshake(ctx context.Context, conn net.Conn, c *tls.Config, host string) error {
	if c.ServerName == "" {
		c.ServerName = host
	}
	sent := false
	certificate := c.GetClientCertificate
	c.GetClientCertificate = func(info *tls.CertificateRequestInfo) (*tls.Certificate, error) {
		sent = true
		if certificate == nil {
			return &tls.Certificate{}, nil
		}
		return certificate(info)
	}
	client := tls.Client(conn, c)
	if err := client.HandshakeContext(ctx); err != nil {
		return err
	}
	if !sent {
		return nil
	}
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if err := conn.SetReadDeadline(time.Now().Add(refusalWait)); err != nil {
		return err
	}
	if _, err := client.Read(make([]byte, 1)); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return nil
}

// target is where a request goes.
type target struct {
	url *url.URL
	// name is the URL as errors show it: without query (CONTRACT C-73).
	name string
}

func newTarget(u *url.URL) target {
	return target{u, (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath}).String()}
}

// to says where the event goes: to url, or where its route leads from there.
func (s *sink) to(e *dispatcher.Event) (target, error) {
	if s.route == nil {
		return s.base, nil
	}
	text, err := s.route(e)
	if err != nil {
		return target{}, reason.Routed(fmt.Errorf("http sink: %w", err))
	}
	u, err := resolve(s.base.url, text)
	if err != nil {
		return target{}, reason.Routed(fmt.Errorf("http sink: the route of event %s, topic %q, %w", e.ID, e.Topic, err))
	}
	return newTarget(u), nil
}

// resolve follows a route from base, as a link in a page (RFC 3986, section 5). A route may be made
// from what is in an event, so it never leaves base's host, and never climbs up. Base's query is kept,
// unless the route has one. The route is not quoted: its query may be secret.
func resolve(base *url.URL, route string) (*url.URL, error) {
	ref, err := url.Parse(route)
	if err != nil {
		return nil, errors.New("is not a path; make it one such as orders/placed, and escape what it takes from events")
	}
	if slices.ContainsFunc(strings.Split(ref.Path, "/"), func(segment string) bool { return segment == "." || segment == ".." }) {
		return nil, errors.New("has a segment . or ..; leave those out, and escape what it takes from events")
	}
	u := base.ResolveReference(ref)
	if u.Scheme != base.Scheme || u.Host != base.Host || u.User != nil || u.Opaque != "" {
		return nil, fmt.Errorf("leads to another host than %s://%s; make it a path, or use a dispatcher of its own for the other host", base.Scheme, base.Host)
	}
	if ref.RawQuery == "" {
		u.RawQuery = base.RawQuery
	}
	u.Fragment, u.RawFragment = "", ""
	return u, nil
}

// group is the part of a batch that goes to one target. at are its events' places in the batch.
type group struct {
	to     target
	events []*dispatcher.Event
	at     []int
}

// groups splits a batch by target. An event without one has its error in errs.
func (s *sink) groups(batch []*dispatcher.Event, errs []error) (all []*group) {
	byURL := map[string]*group{}
	for i, e := range batch {
		to, err := s.to(e)
		if err != nil {
			errs[i] = err
			continue
		}
		key := to.url.String()
		p, known := byURL[key]
		if !known {
			p = &group{to: to}
			byURL[key] = p
			all = append(all, p)
		}
		p.events, p.at = append(p.events, e), append(p.at, i)
	}
	return all
}
