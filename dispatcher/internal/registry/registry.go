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

// ErrNotFound is the registry's answer that there is no such subject, version or id.
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
	// timeout bounds one question, with all references of the schema.
	timeout = 10 * time.Second
	// patience is how long a caller waits for news while there is an answer from before.
	patience = time.Second
	// pause follows a question that failed.
	pause = 2 * time.Second
)

// Client reads schemas and remembers them. Its methods are safe for concurrent use.
type Client struct {
	cfg            config.SchemaRegistry
	refresh, pause time.Duration

	mu      sync.Mutex
	answers map[question]*answer
}

// question is a subject with a version, 0 for the latest, or an id.
type question struct {
	subject     string
	version, id int
}

func (q question) String() string {
	switch {
	case q.id != 0:
		return fmt.Sprintf("schema id %d", q.id)
	case q.version != 0:
		return fmt.Sprintf("subject %s, version %d", q.subject, q.version)
	default:
		return "subject " + q.subject
	}
}

// answer is what is known of a question.
type answer struct {
	schema Schema
	known  bool
	err    error         // of the last asking, when the schema is not known
	due    time.Time     // when to ask again; the zero time when it never was asked
	asking chan struct{} // closed when the asking that runs ends; nil when none runs
}

// New returns a client for cfg. It fails when cfg contradicts itself; the registry and the files are
// first looked at when a schema is asked for.
func New(cfg config.SchemaRegistry) (*Client, error) {
	cfg.ApplyDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.URL = strings.TrimRight(cfg.URL, "/")
	return &Client{cfg: cfg, refresh: cfg.Refresh.D(), pause: pause, answers: map[question]*answer{}}, nil
}

// Schema returns a version of a subject, 0 for the latest. An error is one of three: it wraps
// [ErrNotFound]; or dispatcher.IsUnavailable: the registry cannot be asked now, and it never answered
// this before; or it wraps ctx's.
func (c *Client) Schema(ctx context.Context, subject string, version int) (Schema, error) {
	return c.get(ctx, question{subject: subject, version: version})
}

// SchemaByID returns the schema with an id. Its errors are those of [Client.Schema].
func (c *Client) SchemaByID(ctx context.Context, id int) (Schema, error) {
	return c.get(ctx, question{id: id})
}

// get answers from memory, and asks when that is not there or too old. One asking serves all callers,
// so it does not end with one caller's ctx.
func (c *Client) get(ctx context.Context, q question) (Schema, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.answers[q]
	if a == nil {
		a = &answer{}
		c.answers[q] = a
	}
	var limit <-chan time.Time // nil: none
	wait := !a.known && a.asking != nil
	if a.asking == nil && !time.Now().Before(a.due) {
		wait = true
		a.asking = make(chan struct{})
		go c.ask(q, a)
	}
	if wait {
		if a.known {
			limit = time.After(patience)
		}
		asking := a.asking
		c.mu.Unlock()
		select {
		case <-asking:
		case <-limit:
		case <-ctx.Done():
		}
		c.mu.Lock()
	}
	switch {
	case a.known:
		return a.schema, nil
	case ctx.Err() != nil:
		return Schema{}, fmt.Errorf("asking the schema registry for %s was interrupted: %w", q, ctx.Err())
	default:
		return Schema{}, a.err
	}
}

// ask puts the registry's answer into a.
func (c *Client) ask(q question, a *answer) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	schema, err := c.fetch(ctx, q)
	c.mu.Lock()
	defer c.mu.Unlock()
	close(a.asking)
	a.asking, a.due = nil, time.Now().Add(c.pause)
	switch {
	case err == nil:
		a.schema, a.known, a.err = schema, true, nil
		a.due = time.Now().Add(c.refresh)
		if q.version != 0 || q.id != 0 {
			a.due = time.Now().AddDate(100, 0, 0) // it never changes
		}
	case errors.Is(err, ErrNotFound):
		a.known, a.err = false, err
	default:
		a.err = err // what was known holds
	}
}
