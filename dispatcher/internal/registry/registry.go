package registry

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/outbox-operator/outbox-operator/api/config"
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
	// staleWait is how long a caller waits for a newer schema when an older one is known.
	staleWait = time.Second
	// pause follows a fetch that failed.
	pause = 2 * time.Second
	// maxEntries bounds what is remembered: a subject may be computed from an event.
	maxEntries = 1000
)

// Client reads schemas and remembers them. Its methods are safe for concurrent use.
type Client struct {
	cfg            config.SchemaRegistry
	refresh, pause time.Duration

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
	err      error         // of the last fetch, when the schema is not known
	due      time.Time     // when to fetch again; zero before the first fetch
	fetching chan struct{} // closed when the current fetch ends; nil when none runs
}

// New returns a client for cfg. It fails when cfg is invalid; the registry and the files are
// first read for the first schema.
func New(cfg config.SchemaRegistry) (*Client, error) {
	cfg.ApplyDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.URL = strings.TrimRight(cfg.URL, "/")
	return &Client{cfg: cfg, refresh: cfg.Refresh.D(), pause: pause, entries: map[lookup]*entry{}}, nil
}

// Schema returns a version of a subject, 0 for the latest. An error is one of three: it wraps
// [ErrNotFound]; or dispatcher.IsUnavailable: the registry is unreachable, and the schema
// was never fetched; or it wraps ctx's.
func (c *Client) Schema(ctx context.Context, subject string, version int) (Schema, error) {
	return c.get(ctx, lookup{subject: subject, version: version})
}

// SchemaByID returns the schema with an id. Its errors are those of [Client.Schema].
func (c *Client) SchemaByID(ctx context.Context, id int) (Schema, error) {
	return c.get(ctx, lookup{id: id})
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

// get returns the schema from memory, and fetches it when it is missing or too old. One fetch serves all callers,
// so it does not end with one caller's ctx.
func (c *Client) get(ctx context.Context, q lookup) (Schema, error) {
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
	wait := !a.known && a.fetching != nil
	if a.fetching == nil && !time.Now().Before(a.due) {
		wait = true
		a.fetching = make(chan struct{})
		go c.update(q, a)
	}
	if wait {
		if a.known {
			limit = time.After(staleWait)
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
		return a.schema, nil
	case ctx.Err() != nil:
		return Schema{}, fmt.Errorf("the request to the schema registry for %s was interrupted: %w", q, ctx.Err())
	default:
		return Schema{}, a.err
	}
}

// update fetches the schema into a.
func (c *Client) update(q lookup, a *entry) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	schema, err := c.fetch(ctx, q)
	c.mu.Lock()
	defer c.mu.Unlock()
	close(a.fetching)
	a.fetching, a.due = nil, time.Now().Add(c.pause)
	switch {
	case err == nil:
		a.schema, a.known, a.err = schema, true, nil
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
