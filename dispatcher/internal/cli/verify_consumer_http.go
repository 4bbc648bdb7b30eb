package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/client/consumer"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/consumercheck"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/files"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/httpsink"
)

const (
	// offTimeout bounds the command that repairs the consumer. It is run also when time is up.
	offTimeout = 30 * time.Second
	// maxCount bounds the body of a probe's response.
	maxCount = 64 << 10
)

// httpConsumer is a consumer at a URL.
type httpConsumer struct {
	f       verifyConsumerFlags
	name    string // the URL without its query, which may hold a secret
	cfg     spec.HTTPSink
	sink    dispatcher.Sink
	probing *http.Client
	payload []byte
	sample  string // the aggregate of all events
	stderr  io.Writer
	took    atomic.Bool // the consumer has acknowledged an event
}

// flagNames has the flags of the fields that errors of the http sink name.
var flagNames = strings.NewReplacer("sink.http.url", "--url", "sink.http.headers", "--header",
	"sink.http.signing", "--signing-secret-file", "sink.auth", "--token-file or --user", "sink.tls.caSecretRef or caConfigMapRef", "--ca-file")

func newHTTPConsumer(f verifyConsumerFlags, stderr io.Writer) (h *httpConsumer, err error) {
	h = &httpConsumer{f: f, stderr: stderr, sample: "verify-" + uuid.NewString()[:8], payload: []byte("{}")}
	if err := h.validate(); err != nil {
		return nil, err
	}
	if h.cfg, err = f.sink(); err != nil {
		return nil, err
	}
	if err := fits(h.cfg, spec.Message{}, flagNames); err != nil {
		return nil, err
	}
	if h.sink, err = httpsink.New(h.cfg, nil); err != nil {
		return nil, fmt.Errorf("the flags do not fit: %s", flagNames.Replace(err.Error()))
	}
	if h.sink, err = f.asMessages(h.sink, h.cfg); err != nil {
		return nil, err
	}
	u, err := url.Parse(f.url)
	if err != nil {
		return nil, errors.New("--url cannot be read; correct it") // not err, which quotes it
	}
	h.name = u.Scheme + "://" + u.Host + u.EscapedPath()
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment}
	if h.cfg.TLS != nil {
		if transport.TLSClientConfig, err = files.TLS(h.cfg.TLS); err != nil {
			return nil, fmt.Errorf("--ca-file: %w", err)
		}
	}
	h.probing = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return h, nil
}

// validate checks the flags against each other, and reads the payload.
func (h *httpConsumer) validate() error {
	f := h.f
	switch {
	case f.url == "":
		return errors.New("no consumer; name its address with --url")
	case f.contentMode != string(spec.Binary) && f.contentMode != string(spec.Structured):
		return fmt.Errorf("--content-mode is %q; set it to Binary or Structured", f.contentMode)
	case f.timeout < time.Second:
		return fmt.Errorf("--timeout is %s; set it to 1s or more", f.timeout)
	case f.requestTimeout < 10*time.Millisecond || f.requestTimeout > f.timeout/30:
		return fmt.Errorf("--request-timeout is %s; set it to 10ms or more, and to at most a thirtieth of --timeout (%s), or raise that", f.requestTimeout, f.timeout)
	case f.settle < 0 || f.settle >= f.checkTimeout():
		return fmt.Errorf("--settle is %s; set it to 0s or more, and to less than a tenth of --timeout (%s)", f.settle, f.timeout)
	case f.probe != "" && f.probeCommand != "":
		return errors.New("--probe and --probe-command both count effects; set one of them")
	case f.probeTokenMember != "" && f.probe+f.probeCommand == "":
		return errors.New("--probe-token-member names a member of what the probe returns; set --probe or --probe-command")
	case f.probe+f.probeCommand != "" && !strings.Contains(f.probe+f.probeCommand, "{id}"):
		return errors.New("the probe has no {id}, and would count other events; put it where the event's id belongs")
	}
	for flag, command := range map[string]string{"--fail": f.fail, "--fail-record": f.failRecord, "--crash": f.crash} {
		if command != "" && !strings.Contains(command, "{state}") {
			return fmt.Errorf("%s has no {state}, and would do the same twice; put it where on and off belong", flag)
		}
	}
	if f.payload != "" {
		var err error
		if h.payload, err = os.ReadFile(f.payload); err != nil {
			return fmt.Errorf("--payload: %w; name a file with a JSON object", err)
		}
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(h.payload, &fields); err != nil || fields == nil {
		return fmt.Errorf("--payload: %s does not hold a JSON object; write one that the consumer handles", f.payload)
	}
	for _, name := range f.optional {
		if fields[name] == nil {
			return fmt.Errorf("--optional %s: the payload has no such field, so it cannot be left out; add it to the file of --payload", name)
		}
	}
	return nil
}

// consumer is what the checks are made with: a hook is there when its flag is.
func (h *httpConsumer) consumer() consumercheck.Consumer {
	c := consumercheck.Consumer{
		Deliver: h.deliver, Event: h.event, Optional: h.f.optional, Ready: h.ready, CheckTimeout: h.f.checkTimeout(),
		ResponseTimeout: h.f.requestTimeout, AnyType: h.f.anyType, NoRecord: h.f.noRecord, LatestOnly: h.f.latestOnly,
	}
	if h.f.probe+h.f.probeCommand != "" {
		c.Effects = func(ctx context.Context, id uuid.UUID) (int, error) {
			n, err := h.settled(ctx, id, "--probe-member", h.f.probeMember)
			return int(n), err
		}
		if h.f.probeTokenMember != "" {
			c.Token = func(ctx context.Context, id uuid.UUID) (int64, error) {
				return h.settled(ctx, id, "--probe-token-member", h.f.probeTokenMember)
			}
		}
	}
	if h.f.restart != "" {
		c.Restart = func(ctx context.Context) error { return h.command(ctx, "--restart", h.f.restart) }
	}
	if h.f.fail != "" {
		c.FailEffect = func(ctx context.Context, fails bool) error { return h.set(ctx, "--fail", h.f.fail, fails) }
	}
	if h.f.failRecord != "" {
		c.FailRecord = func(ctx context.Context, fails bool) error { return h.set(ctx, "--fail-record", h.f.failRecord, fails) }
	}
	if h.f.crash != "" {
		c.Crash = h.crash
	}
	return c
}

func (h *httpConsumer) event() *consumer.Event {
	return &consumer.Event{
		Namespace: h.f.namespace, Topic: h.f.topic, EventType: h.f.eventType, AggregateType: "verification", AggregateID: h.sample,
		CreatedAt: time.Now(), Payload: h.payload,
	}
}

// deliver sends the event as a dispatcher would. Until one was acknowledged a refusal says more of the flags than of
// the consumer.
func (h *httpConsumer) deliver(ctx context.Context, e *consumer.Event) error {
	payload := bytes.ReplaceAll(e.Payload, []byte("{id}"), []byte(e.ID.String()))
	err := h.sink.Deliver(ctx, []*dispatcher.Event{{
		ID: e.ID, Seq: e.Sequence, Namespace: e.Namespace, Topic: e.Topic, EventType: e.EventType, AggregateType: e.AggregateType,
		AggregateID: e.AggregateID, Headers: e.Headers, Payload: payload, CreatedAt: e.CreatedAt, Attempt: e.Attempt, LeaseNumber: e.FencingToken,
	}})[0]
	switch {
	case err == nil:
		h.took.Store(true)
	case dispatcher.IsUnavailable(err):
		return consumercheck.Unusable(err)
	case ctx.Err() != nil: // the checks have given it up
	case !h.took.Load():
		return consumercheck.Unusable(fmt.Errorf("the first event is refused: %w. Set --url, --content-mode, --type, --payload and the login to what the consumer takes", err))
	}
	return err
}

// ready waits until the URL takes connections.
func (h *httpConsumer) ready(ctx context.Context) error {
	for {
		err := h.sink.Probe(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the consumer was not reachable again within %s: %w; its log says why", h.f.checkTimeout(), err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// crash makes the consumer crash on the event.
func (h *httpConsumer) crash(ctx context.Context, e *consumer.Event) error {
	if err := h.set(ctx, "--crash", h.f.crash, true); err != nil {
		return err
	}
	err := h.deliver(ctx, e)
	if failed := h.set(ctx, "--crash", h.f.crash, false); failed != nil {
		return failed
	}
	if err == nil {
		return errors.New("--crash: the event is acknowledged, so the consumer did not crash; correct the command")
	}
	return nil
}

// settled waits before it reads the probe's member, which a flag names.
func (h *httpConsumer) settled(ctx context.Context, id uuid.UUID, memberFlag, member string) (int64, error) {
	select {
	case <-ctx.Done():
	case <-time.After(h.f.settle):
	}
	flag, read := "--probe", h.probe
	if h.f.probeCommand != "" {
		flag, read = "--probe-command", h.printed
	}
	text, err := read(ctx, id)
	var n int64
	if err == nil {
		n, err = numberOf(text, memberFlag, member)
	}
	if err != nil {
		return 0, fmt.Errorf("%s: %w", flag, err)
	}
	return n, nil
}

// probe is what the URL responds about an event. Its errors never quote the URL or the response.
func (h *httpConsumer) probe(ctx context.Context, id uuid.UUID) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.ReplaceAll(h.f.probe, "{id}", id.String()), nil)
	if err != nil {
		return nil, errors.New("it is not a URL; correct it")
	}
	if own, err := url.Parse(h.f.url); err == nil && own.Scheme == req.URL.Scheme && own.Host == req.URL.Host {
		for _, h := range h.cfg.Headers {
			req.Header.Set(h.Name, h.Value)
		}
		if h.cfg.Auth != nil {
			value, err := files.Authorization("--token-file or --user", h.cfg.Auth)
			if err != nil {
				return nil, err
			}
			req.Header.Set("Authorization", value)
		}
	}
	resp, err := h.probing.Do(req)
	if err != nil {
		var quoting *url.Error
		if errors.As(err, &quoting) {
			err = quoting.Err
		}
		return nil, fmt.Errorf("no response: %w; see that it runs", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxCount))
	switch {
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("it responded with %d; have it respond with 200 and a number, 0 for an event that it does not know", resp.StatusCode)
	case err != nil:
		return nil, fmt.Errorf("read the response: %w; see that it runs", err)
	}
	return body, nil
}

// printed is what the command prints about an event.
func (h *httpConsumer) printed(ctx context.Context, id uuid.UUID) ([]byte, error) {
	var out bytes.Buffer
	if err := h.run(ctx, strings.ReplaceAll(h.f.probeCommand, "{id}", id.String()), &out); err != nil {
		return nil, fmt.Errorf("%w; correct the command", err)
	}
	return out.Bytes(), nil
}

// numberOf reads a number, or the one in the member of an object, which may be a text as a token is in a message.
func numberOf(response []byte, memberFlag, member string) (int64, error) {
	text := bytes.TrimSpace(response)
	var object map[string]json.RawMessage
	if json.Unmarshal(text, &object) == nil && object != nil {
		text = bytes.Trim(object[member], `"`)
	}
	n, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("it gives neither a number of 0 or more nor a JSON object that has one in %q; correct it, or set %s", member, memberFlag)
	}
	return n, nil
}

// set runs a command with its state. It switches off also when time is up.
func (h *httpConsumer) set(ctx context.Context, flag, command string, on bool) error {
	state := "on"
	if !on {
		state = "off"
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), offTimeout)
		defer cancel()
	}
	return h.command(ctx, flag, strings.ReplaceAll(command, "{state}", state))
}

func (h *httpConsumer) command(ctx context.Context, flag, command string) error {
	if err := h.run(ctx, command, h.stderr); err != nil {
		return fmt.Errorf("%s: %w; correct the command", flag, err)
	}
	return nil
}

// run has sh run a command. Its standard error goes to the dispatcher's.
func (h *httpConsumer) run(ctx context.Context, command string, out io.Writer) error {
	cmd := exec.CommandContext(ctx, "sh", "-c", command)
	cmd.Stdout, cmd.Stderr = out, h.stderr
	cmd.WaitDelay = time.Second // a consumer that it started may keep its output open
	if err := cmd.Run(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		if ctx.Err() != nil {
			return errors.New("the command was not done in time")
		}
		return fmt.Errorf("the command failed: %w", err)
	}
	return nil
}
