package deadletters

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
)

const (
	// maxAnswer bounds an answer: a payload, and what JSON makes of it.
	maxAnswer = 8 * MaxPayload
	// maxRefusal bounds the words of an error.
	maxRefusal = 4 << 10
)

// Client is the source that a [Handler] serves at a URL.
type Client struct {
	// URL is where, such as http://127.0.0.1:8080.
	URL string
	// HTTP asks. Defaults to http.DefaultClient.
	HTTP *http.Client
}

var _ Source = Client{}

// Groups implements [Source].
// It fails when the pod refuses the request or cannot be reached.
func (c Client) Groups(ctx context.Context, f Filter) (out Groups, err error) {
	return out, c.get(ctx, GroupsPath, ListRequest{Filter: f}.values(), &out)
}

// List implements [Source]. It fails as [Client.Groups] does.
func (c Client) List(ctx context.Context, r ListRequest) (out Page, err error) {
	return out, c.get(ctx, ListPath, r.values(), &out)
}

// Show implements [Source]. It fails as [Client.Groups] does, and with [ErrNotFound].
func (c Client) Show(ctx context.Context, id string, payload bool) (out DeadLetter, err error) {
	return out, c.get(ctx, ListPath+"/"+url.PathEscape(id), with(payload), &out)
}

// Event implements [Source]. It fails as [Client.Groups] does, and with [ErrNotFound].
func (c Client) Event(ctx context.Context, id string, payload bool) (out History, err error) {
	return out, c.get(ctx, EventsPath+"/"+url.PathEscape(id), with(payload), &out)
}

func with(payload bool) url.Values {
	if payload {
		return url.Values{"payload": {"true"}}
	}
	return nil
}

func (c Client) get(ctx context.Context, path string, query url.Values, out any) error {
	where := c.URL + path
	if len(query) > 0 {
		where += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, where, nil)
	if err != nil {
		return err
	}
	client := c.HTTP
	if client == nil {
		client = http.DefaultClient
	}
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("ask the dispatcher: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, maxRefusal))
		return refusal(resp.StatusCode, strings.TrimSpace(strings.ToValidUTF8(string(text), "")))
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return fmt.Errorf("read the dispatcher's answer: %w", err)
	}
	if len(body) > maxAnswer {
		return fmt.Errorf("the dispatcher answered with more than %d bytes; ask without the payload, or with a smaller --limit", maxAnswer)
	}
	if err := json.Unmarshal(body, out); err != nil {
		return fmt.Errorf("read the dispatcher's answer: %w; is it a dispatcher of this version?", err)
	}
	return nil
}

// refusal is an answer that is no answer.
func refusal(status int, text string) error {
	switch {
	case status == http.StatusNotFound && text != "404 page not found": // in the words of net/http, for an unknown path
		return &remote{text, ErrNotFound}
	case status == http.StatusNotFound:
		return fmt.Errorf("the dispatcher does not know this question (404): its image is older than this command; upgrade it")
	case status == http.StatusBadRequest:
		return Wrong(errors.New(text))
	case status == http.StatusServiceUnavailable, status == http.StatusInternalServerError, status == http.StatusForbidden:
		return errors.New(text)
	}
	return fmt.Errorf("the dispatcher answered %d %s: %s", status, http.StatusText(status), text)
}

// remote is an error that a dispatcher told, with its cause and remedy.
type remote struct {
	text string
	err  error
}

func (r *remote) Error() string { return r.text }
func (r *remote) Unwrap() error { return r.err }
