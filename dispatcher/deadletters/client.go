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

	"github.com/outbox-operator/outbox-operator/api/status"
)

const (
	// maxResponse bounds a response: a payload, and what JSON makes of it.
	maxResponse = 8 * MaxPayload
	// maxErrorText bounds the text of an error.
	maxErrorText = 4 << 10
)

// Client is the source that a [Handler] serves at a URL.
type Client struct {
	// URL of the pod's server, such as http://127.0.0.1:8080.
	URL string
	// HTTP sends the requests. Defaults to http.DefaultClient.
	HTTP *http.Client
}

var _ Source = Client{}

// Groups implements [Source]. It fails when the pod cannot be reached or refuses the request.
func (c Client) Groups(ctx context.Context, f Filter) (out Groups, err error) {
	return out, c.get(ctx, GroupsPath, ListRequest{Filter: f}.Values(), &out)
}

// CountBy implements [Source]. It fails as [Client.Groups] does.
func (c Client) CountBy(ctx context.Context, f Filter, by By) (out Counts, err error) {
	return out, c.get(ctx, CountsPath+"/"+url.PathEscape(string(by)), ListRequest{Filter: f}.Values(), &out)
}

// List implements [Source]. It fails as [Client.Groups] does.
func (c Client) List(ctx context.Context, r ListRequest) (out Page, err error) {
	return out, c.get(ctx, ListPath, r.Values(), &out)
}

// Show implements [Source]. It fails as [Client.Groups] does, and with [ErrNotFound].
func (c Client) Show(ctx context.Context, id string, payload bool) (out DeadLetter, err error) {
	return out, c.get(ctx, ListPath+"/"+url.PathEscape(id), payloadQuery(payload), &out)
}

// Event implements [Source]. It fails as [Client.Groups] does, and with [ErrNotFound].
func (c Client) Event(ctx context.Context, id string, payload bool) (out History, err error) {
	return out, c.get(ctx, EventsPath+"/"+url.PathEscape(id), payloadQuery(payload), &out)
}

// Status reads what the pod reports of itself, whole. It fails as [Client.Groups] does.
func (c Client) Status(ctx context.Context) (out status.Status, err error) {
	return out, c.get(ctx, status.Path, nil, &out)
}

func payloadQuery(payload bool) url.Values {
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
		return fmt.Errorf("request to the dispatcher: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorText))
		return refusal(resp.StatusCode, strings.TrimSpace(strings.ToValidUTF8(string(text), "")))
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxResponse+1))
	if err != nil {
		return fmt.Errorf("read the dispatcher's response: %w", err)
	}
	if len(body) > maxResponse {
		return fmt.Errorf("the dispatcher's response has more than %d bytes; leave out the payload, or set a smaller --limit", maxResponse)
	}
	if err := json.Unmarshal(body, out); err != nil {
		return fmt.Errorf("read the dispatcher's response: %w; is it a dispatcher of this version?", err)
	}
	return nil
}

// refusal returns the error that a response other than 200 says.
func refusal(status int, text string) error {
	switch {
	case status == http.StatusNotFound && text != "404 page not found": // in the words of net/http, for an unknown path
		return &remote{text, ErrNotFound}
	case status == http.StatusNotFound:
		return fmt.Errorf("the dispatcher does not know this request (404): its image is older than this command; upgrade it")
	case status == http.StatusBadRequest:
		return Invalid(errors.New(text))
	case status == http.StatusServiceUnavailable, status == http.StatusInternalServerError, status == http.StatusForbidden:
		return errors.New(text)
	}
	return fmt.Errorf("the dispatcher responded %d %s: %s", status, http.StatusText(status), text)
}

// remote is an error in the words of the dispatcher, which have the cause and the remedy.
type remote struct {
	text string
	err  error
}

func (r *remote) Error() string { return r.text }
func (r *remote) Unwrap() error { return r.err }
