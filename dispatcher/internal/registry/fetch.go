package registry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/twmb/franz-go/pkg/sr"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/files"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
)

// fetch reads from the registry. Requests are so rare that each has its own connection, and reads the
// files: what they hold may have changed.
func (c *Client) fetch(ctx context.Context, q lookup) (Schema, error) {
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	if c.cfg.TLS != nil {
		var err error
		if transport.TLSClientConfig, err = files.TLS(c.cfg.TLS); err != nil {
			return Schema{}, c.unavailable(q, reason.CertificateInvalid, err)
		}
	}
	client, err := sr.NewClient(sr.URLs(c.cfg.URL), sr.HTTPClient(&http.Client{Transport: transport}), sr.UserAgent("outbox-dispatcher"), sr.PreReq(c.authorize))
	if err != nil {
		return Schema{}, c.unavailable(q, reason.ConnectionFailed, err)
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
			return nil, c.failure(lookup{subject: ref.Subject, version: ref.Version}, err)
		}
		deeper, err := c.references(ctx, client, found.References, seen)
		if err != nil {
			return nil, err
		}
		out = append(append(out, deeper...), Reference{Name: ref.Name, Text: found.Schema.Schema})
	}
	return out, nil
}

func (c *Client) authorize(req *http.Request) error {
	if c.cfg.Auth == nil {
		return nil
	}
	value, err := files.Authorization("message.schemaRegistry.auth", c.cfg.Auth)
	req.Header.Set("Authorization", value)
	return err
}

// failure maps an error of the client's library. Of a response only its status is quoted:
// its body can be anything that stands between us and the registry.
func (c *Client) failure(q lookup, err error) error {
	var response *sr.ResponseError
	var failed *url.Error
	switch {
	case errors.As(err, &response):
		return c.refused(q, response)
	case errors.As(err, &failed):
		err = failed.Err
	case reason.Of(err) != reason.AuthenticationFailed && !reason.IsTimeout(err):
		return c.unavailable(q, reason.Refusing, fmt.Errorf("the response is not a registry's: %w; check message.schemaRegistry.url", err))
	}
	return dispatcher.Unavailable(peer.Unreachable(fmt.Sprintf("schema registry %s for %s", c.cfg.URL, q), timeout, err))
}

var peer = reason.Peer{
	Name: "the registry", Hosts: "message.schemaRegistry.url", TLS: "message.schemaRegistry.tls", Plain: "use an http:// URL in message.schemaRegistry.url",
}

func (c *Client) refused(q lookup, response *sr.ResponseError) error {
	status := fmt.Sprintf("status %d %s", response.StatusCode, http.StatusText(response.StatusCode))
	switch {
	case response.StatusCode == http.StatusNotFound && response.ErrorCode != 0:
		return fmt.Errorf("schema registry %s: %s: %w; register it there, or correct the name", c.cfg.URL, q, ErrNotFound)
	case response.StatusCode == http.StatusUnauthorized, response.StatusCode == http.StatusForbidden:
		return c.unavailable(q, reason.AuthenticationFailed, errors.New(status+"; check the credentials in message.schemaRegistry.auth, and that they may read the subject"))
	default:
		return c.unavailable(q, reason.Refusing, errors.New(status+"; check message.schemaRegistry.url, and the registry's log"))
	}
}

// unavailable is a failure that is not the event's. It spends no attempt.
func (c *Client) unavailable(q lookup, word string, err error) error {
	return dispatcher.Unavailable(reason.With(word, fmt.Errorf("schema registry %s: %s: %w", c.cfg.URL, q, err)))
}
