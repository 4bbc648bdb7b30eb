package registry

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"

	"github.com/twmb/franz-go/pkg/sr"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/files"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/reason"
)

// fetch asks the registry. It is asked so rarely that each time has its own connection, and reads the
// files: what they hold may have changed.
func (c *Client) fetch(ctx context.Context, q question) (Schema, error) {
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	if c.cfg.TLS != nil {
		var err error
		if transport.TLSClientConfig, err = files.TLS(c.cfg.TLS); err != nil {
			return Schema{}, c.away(q, reason.CertificateInvalid, err)
		}
	}
	client, err := sr.NewClient(sr.URLs(c.cfg.URL), sr.HTTPClient(&http.Client{Transport: transport}), sr.UserAgent("outbox-dispatcher"), sr.PreReq(c.authorize))
	if err != nil {
		return Schema{}, c.away(q, reason.ConnectionFailed, err)
	}
	var s sr.Schema
	id := q.id
	if id != 0 {
		s, err = client.SchemaByID(ctx, id)
	} else {
		var found sr.SubjectSchema
		found, err = client.SchemaByVersion(ctx, q.subject, versionOr(q.version, latest))
		s, id = found.Schema, found.ID
	}
	if err != nil {
		return Schema{}, c.failure(q, err)
	}
	out := Schema{ID: id, Type: s.Type.String(), Text: s.Schema}
	out.References, err = c.references(ctx, client, s.References, map[string]bool{})
	return out, err
}

// latest is how the client's library names the latest version.
const latest = -1

func versionOr(version, other int) int {
	if version == 0 {
		return other
	}
	return version
}

// references fetches what refs name that is not seen yet, deepest first.
func (c *Client) references(ctx context.Context, client *sr.Client, refs []sr.SchemaReference, seen map[string]bool) (out []Reference, err error) {
	for _, ref := range refs {
		if seen[ref.Name] {
			continue
		}
		seen[ref.Name] = true
		found, err := client.SchemaByVersion(ctx, ref.Subject, ref.Version)
		if err != nil {
			return nil, c.failure(question{subject: ref.Subject, version: ref.Version}, err)
		}
		deeper, err := c.references(ctx, client, found.References, seen)
		if err != nil {
			return nil, err
		}
		out = append(append(out, deeper...), Reference{Name: ref.Name, Text: found.Schema.Schema})
	}
	return out, nil
}

// loginError is a file with credentials that cannot be used.
type loginError struct{ error }

func (e *loginError) Unwrap() error { return e.error }

func (c *Client) authorize(req *http.Request) error {
	auth := c.cfg.Auth
	switch {
	case auth == nil:
		return nil
	case auth.Basic != nil:
		user, err := files.Read("schemaRegistry.auth.basic.usernameFile", auth.Basic.UsernameFile)
		if err != nil {
			return &loginError{err}
		}
		password, err := files.Read("schemaRegistry.auth.basic.passwordFile", auth.Basic.PasswordFile)
		if err != nil {
			return &loginError{err}
		}
		req.SetBasicAuth(string(user), string(password))
	default:
		token, err := files.Read("schemaRegistry.auth.bearerTokenFile", auth.BearerTokenFile)
		if err != nil {
			return &loginError{err}
		}
		if bytes.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return &loginError{fmt.Errorf("schemaRegistry.auth.bearerTokenFile: %s holds spaces, line breaks or other characters that no token has; write the token alone into it", auth.BearerTokenFile)}
		}
		req.Header.Set("Authorization", "Bearer "+string(token))
	}
	return nil
}

// failure says what an error of the client's library means. Of an answer only its status is quoted:
// its body can be anything that stands between us and the registry.
func (c *Client) failure(q question, err error) error {
	var answer *sr.ResponseError
	var login *loginError
	var failed *url.Error
	var authority x509.UnknownAuthorityError
	var dns *net.DNSError
	switch {
	case errors.As(err, &login):
		return c.away(q, reason.AuthenticationFailed, login)
	case errors.As(err, &answer):
		return c.refused(q, answer)
	case errors.Is(err, context.DeadlineExceeded):
		return c.away(q, reason.ConnectionFailed, timedOut(fmt.Sprintf("no answer within %s; check that it runs, and that the network lets the dispatcher reach it", timeout)))
	case !errors.As(err, &failed):
		return c.away(q, reason.Refusing, fmt.Errorf("the answer is not a registry's: %w; check schemaRegistry.url", err))
	case errors.As(err, &authority):
		return c.away(q, reason.CertificateInvalid, fmt.Errorf("%w; set schemaRegistry.tls.ca (in a dispatcher's file: schemaRegistry.tls.caFile) to the certificate of its authority", failed.Err))
	case reason.IsCertificate(err):
		return c.away(q, reason.CertificateInvalid, fmt.Errorf("%w; renew the certificate, or give the dispatcher one that the registry trusts", failed.Err))
	case errors.As(err, &dns):
		return c.away(q, reason.ConnectionFailed, fmt.Errorf("%w; check schemaRegistry.url and the dispatcher's DNS", failed.Err))
	default:
		return c.away(q, reason.ConnectionFailed, fmt.Errorf("%w; check that it runs, and that the network lets the dispatcher reach it", failed.Err))
	}
}

func (c *Client) refused(q question, answer *sr.ResponseError) error {
	status := fmt.Sprintf("answer %d %s", answer.StatusCode, http.StatusText(answer.StatusCode))
	switch {
	case answer.StatusCode == http.StatusNotFound && answer.ErrorCode != 0:
		return fmt.Errorf("schema registry %s: %s: %w; register it there, or correct the name", c.cfg.URL, q, ErrNotFound)
	case answer.StatusCode == http.StatusUnauthorized, answer.StatusCode == http.StatusForbidden:
		return c.away(q, reason.AuthenticationFailed, errors.New(status+"; check the credentials in schemaRegistry.auth, and that they may read the subject"))
	default:
		return c.away(q, reason.Refusing, errors.New(status+"; check schemaRegistry.url, and the registry's log"))
	}
}

// away is a failure that is not the event's: nothing was sent anywhere because of it.
func (c *Client) away(q question, word string, err error) error {
	return dispatcher.Unavailable(reason.With(word, fmt.Errorf("schema registry %s: %s: %w", c.cfg.URL, q, err)))
}

// timedOut is the client's own limit. It is no context error, which would say that the caller gave up.
type timedOut string

func (t timedOut) Error() string { return string(t) }
func (timedOut) Timeout() bool   { return true }
