// Package registry reads schemas from a schema registry: Confluent's, or what speaks its API. It never
// writes there.
//
// # Memory
//
// A fixed version and an id are fetched once. The latest version of a subject is fetched again
// after the refresh time (5m). While the registry is unreachable, the last known schema stays in use,
// however old: an outage of the registry stops only schemas that were never fetched. Their error is
// dispatcher.Unavailable, which spends no attempt of an event. A registry that does not respond at all
// holds up one caller for a second now and then.
//
// For events that do not fit, the latest version is fetched at once, at most four times in a second
// ([Client.Newer]): a producer may have registered a newer one for them. Their callers wait for it for a second, or for
// twice as long as the last fetch took: else an event that does not fit would never be final where the registry is slow.
//
// A subject that does not exist is [ErrNotFound]. It is looked up again after two seconds.
//
// # Security
//
// Use https, and credentials in files, basic or bearer. Files are read for each request to the
// registry, so new ones need no restart. Errors never quote credentials or a response's body.
package registry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/sr"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/files"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
)

// ErrNotFound means that the registry has no such subject, version or id.
var ErrNotFound = errors.New("it is not registered")

// The types of schemas.
const (
	Avro     = "AVRO"
	JSON     = "JSON"
	Protobuf = "PROTOBUF"
)

// Schema is one version of a subject.
type Schema struct {
	// ID is the registry's number for it. It never stands for another schema.
	ID int
	// Type is AVRO, JSON or PROTOBUF.
	Type string
	// Text is the schema as it was registered.
	Text string
	// References are all schemas that Text needs, also those that these need, each before the first
	// one that names it.
	References []Reference
}

// Reference is a schema that another one names.
type Reference struct {
	// Name is what it is called there: an Avro name, a JSON Schema's $ref, or a Protobuf import.
	Name string
	// Text is the referenced schema.
	Text string
}

const (
	// timeout bounds one fetch, with all references of the schema.
	timeout = 10 * time.Second
	// staleWait is how long a caller waits for a newer schema when an older one is known. One with an event that does
	// not fit waits for twice as long as the last fetch took, if that is longer: a registry may be in another region.
	staleWait = time.Second
	// pause follows a fetch that failed.
	pause = 2 * time.Second
	// spacing is at least between a schema's fetch and the next one: every event that does not fit requests one.
	spacing = 250 * time.Millisecond
	// maxEntries bounds what is remembered: a subject may be computed from an event.
	maxEntries = 1000
)

// Client reads schemas and remembers them. Its methods are safe for concurrent use.
type Client struct {
	cfg            spec.SchemaRegistry
	refresh, pause time.Duration
	// StaleWait is staleWait, but for tests.
	StaleWait time.Duration

	mu      sync.Mutex
	entries map[lookup]*entry
}

// lookup is a subject with a version, 0 for the latest, or an id.
type lookup struct {
	subject     string
	version, id int
}

func (q lookup) String() string {
	switch {
	case q.id != 0:
		return fmt.Sprintf("schema id %d", q.id)
	case q.version != 0:
		return fmt.Sprintf("subject %s, version %d", q.subject, q.version)
	default:
		return "subject " + q.subject
	}
}

// entry is what is known of a lookup.
type entry struct {
	schema   Schema
	known    bool
	err      error         // of the last fetch
	due      time.Time     // when to fetch again; zero before the first fetch
	asOf     time.Time     // when the schema was requested
	started  time.Time     // when the current or the last fetch was
	took     time.Duration // how long the last fetch took that succeeded, with its turn
	fetching chan struct{} // closed when the current fetch ends; nil when none runs
}

// New returns a client for cfg. It fails when cfg is invalid; the registry and the files are
// first read for the first schema.
func New(cfg spec.SchemaRegistry) (*Client, error) {
	cfg.ApplyDefaults()
	cfg.URL = strings.TrimRight(cfg.URL, "/")
	return &Client{cfg: cfg, refresh: cfg.Refresh.D(), pause: pause, StaleWait: staleWait, entries: map[lookup]*entry{}}, nil
}

// Schema returns a version of a subject, 0 for the latest. An error is one of three: it wraps
// [ErrNotFound]; or dispatcher.IsUnavailable: the registry is unreachable, and the schema
// was never fetched; or it wraps ctx's.
func (c *Client) Schema(ctx context.Context, subject string, version int) (Schema, error) {
	a, err := c.get(ctx, lookup{subject: subject, version: version}, time.Time{})
	return a.schema, err
}

// Newer returns the latest version of a subject for an event that does not fit the one of [Client.Schema]. It may be
// that one: unsure is nil when the registry had it as the latest at the time since, or later, and else says why that is not
// known. Its errors are those of Schema.
func (c *Client) Newer(ctx context.Context, subject string, since time.Time) (schema Schema, unsure, err error) {
	q := lookup{subject: subject}
	for range 2 { // the first fetch may have begun before since
		var a entry
		if a, err = c.get(ctx, q, since); err != nil {
			return Schema{}, nil, err
		}
		if !a.asOf.Before(since) {
			return a.schema, nil, nil
		}
		schema, unsure = a.schema, a.err
	}
	if ctx.Err() != nil {
		return Schema{}, nil, interrupted(ctx, q)
	}
	if unsure == nil {
		unsure = fmt.Errorf("schema registry %s for %s does not respond in time; check its load, and the network on the way to it", c.cfg.URL, q)
	}
	return schema, unsure, nil
}

// SchemaByID returns the schema with an id. Its errors are those of [Client.Schema].
func (c *Client) SchemaByID(ctx context.Context, id int) (Schema, error) {
	a, err := c.get(ctx, lookup{id: id}, time.Time{})
	return a.schema, err
}

// evict forgets a lookup that no fetch runs for: one without a schema, if there is one.
func (c *Client) evict() {
	for _, known := range []bool{false, true} {
		for q, a := range c.entries {
			if a.fetching == nil && a.known == known {
				delete(c.entries, q)
				return
			}
		}
	}
}

// get returns what is known of the schema. It fetches it when it is missing or too old, or
// from before since, unless the last fetch failed. One fetch serves all callers, so it does not end with one caller's ctx.
func (c *Client) get(ctx context.Context, q lookup, since time.Time) (entry, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.entries[q]
	if a == nil {
		if len(c.entries) >= maxEntries {
			c.evict()
		}
		a = &entry{}
		c.entries[q] = a
	}
	var limit <-chan time.Time // nil: none
	old := a.known && a.err == nil && a.asOf.Before(since)
	wait := a.fetching != nil && (old || !a.known)
	if a.fetching == nil && (old || !time.Now().Before(a.due)) {
		wait = true
		a.fetching, a.started = make(chan struct{}), time.Now()
		go c.update(q, a, time.After(time.Until(a.asOf.Add(spacing))))
	}
	if wait {
		if a.known {
			within := c.StaleWait
			if a.asOf.Before(since) {
				within = max(within, 2*a.took)
			}
			limit = time.After(time.Until(a.started.Add(within)))
		}
		fetching := a.fetching
		c.mu.Unlock()
		select {
		case <-fetching:
		case <-limit:
		case <-ctx.Done():
		}
		c.mu.Lock()
	}
	switch {
	case a.known:
		return *a, nil
	case ctx.Err() != nil:
		return entry{}, interrupted(ctx, q)
	default:
		return entry{}, a.err
	}
}

func interrupted(ctx context.Context, q lookup) error {
	return fmt.Errorf("the request to the schema registry for %s was interrupted: %w", q, ctx.Err())
}

// update fetches the schema into a, at its turn.
func (c *Client) update(q lookup, a *entry, turn <-chan time.Time) {
	<-turn
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	schema, err := c.fetch(ctx, q)
	c.mu.Lock()
	defer c.mu.Unlock()
	close(a.fetching)
	a.fetching, a.due = nil, time.Now().Add(c.pause)
	switch {
	case err == nil:
		a.schema, a.asOf, a.known, a.err = schema, began, true, nil
		a.took = time.Since(a.started)
		a.due = time.Now().Add(c.refresh)
		if q.version != 0 || q.id != 0 {
			a.due = time.Now().AddDate(100, 0, 0) // a fixed version never changes
		}
	case errors.Is(err, ErrNotFound):
		a.known, a.err = false, err
	default:
		a.err = err // a known schema stays in use
	}
}

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
