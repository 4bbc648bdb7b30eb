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

func (c *Client) authorize(req *http.Request) error {
	if c.cfg.Auth == nil {
		return nil
	}
	value, err := files.Authorization("schemaRegistry.auth", c.cfg.Auth)
	req.Header.Set("Authorization", value)
	return err
}

// failure says what an error of the client's library means. Of an answer only its status is quoted:
// its body can be anything that stands between us and the registry.
func (c *Client) failure(q question, err error) error {
	var answer *sr.ResponseError
	var failed *url.Error
	switch {
	case errors.As(err, &answer):
		return c.refused(q, answer)
	case errors.As(err, &failed):
		err = failed.Err
	case reason.Of(err) != reason.AuthenticationFailed && !reason.IsTimeout(err):
		return c.away(q, reason.Refusing, fmt.Errorf("the answer is not a registry's: %w; check schemaRegistry.url", err))
	}
	return dispatcher.Unavailable(peer.Unreachable(fmt.Sprintf("schema registry %s for %s", c.cfg.URL, q), timeout, err))
}

var peer = reason.Peer{
	Name: "the registry", Hosts: "schemaRegistry.url", TLS: "schemaRegistry.tls", Plain: "use an http:// URL in schemaRegistry.url",
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
