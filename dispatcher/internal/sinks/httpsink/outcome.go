package httpsink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/base"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
)

// maxRetryAfter bounds the pause that a destination may request.
const maxRetryAfter = time.Hour

// explain maps a status. The response's body, reason phrase and headers are never quoted: they may
// echo the request (CONTRACT C-73).
func (t target) explain(resp *http.Response, claimedAt time.Time) error {
	code := resp.StatusCode
	if code >= 200 && code <= 299 {
		return nil
	}
	err := reason.Coded(strconv.Itoa(code), fmt.Errorf("%s responded %d %s; %s", t.name, code, http.StatusText(code), remedy(code)))
	switch {
	case code == http.StatusUnauthorized, code == http.StatusProxyAuthRequired:
		// The server knows no identity by these credentials, and took nothing: no event is at fault.
		return dispatcher.Unavailable(reason.With(reason.AuthenticationFailed, err))
	case code == http.StatusForbidden:
		return reason.With(reason.AuthenticationFailed, err)
	case retried(code):
		if pause := requestedPause(resp.Header, claimedAt); pause > 0 {
			err = dispatcher.RetryAfter(pause, err)
		}
		if code >= 500 || code == http.StatusTooManyRequests {
			err = dispatcher.DestinationFault(err)
		}
	case code == http.StatusRequestEntityTooLarge:
		return refusedContent{dispatcher.Permanent(dispatcher.ReasonPermanentFailure, err)} // of a batch only where its one event is too large
	case code == http.StatusBadRequest, code == http.StatusConflict, code == http.StatusUnprocessableEntity:
		return refusedContent{err}
	}
	return err
}

// refusedContent is a refusal of what was sent, which may be one event's of a batch.
type refusedContent struct{ error }

func (r refusedContent) Unwrap() error { return r.error }

// retried are the statuses that are about the destination's moment, not of the event.
func retried(code int) bool {
	switch code {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	}
	return code >= 500
}

func remedy(code int) string {
	switch {
	case code == http.StatusUnauthorized, code == http.StatusForbidden:
		return "check the credentials in auth, and what they may do there"
	case code == http.StatusProxyAuthRequired:
		return "put the proxy's credentials into HTTP_PROXY or HTTPS_PROXY"
	case code == http.StatusNotFound, code == http.StatusMethodNotAllowed, code == http.StatusGone:
		return "check the path of url, and that it takes POST"
	case code == http.StatusRequestEntityTooLarge:
		return "raise the destination's limit, lower batchSize, or make smaller events"
	case code == http.StatusUnsupportedMediaType:
		return "choose the contentMode that the destination understands"
	case code == http.StatusTooManyRequests:
		return "lower maxConnections, or raise the destination's limit"
	case retried(code):
		return "the destination's log says why; the event is retried"
	case code < 400:
		return "redirects are not followed, so set url to the final address"
	default:
		return "the destination refuses this event, and its log says why"
	}
}

// requestedPause is the pause of Retry-After, or without it the time until a limit that is used is new, by the IETF's draft of the
// RateLimit fields: RateLimit: "default";r=0;t=30, or RateLimit-Remaining and RateLimit-Reset of its first versions.
func requestedPause(h http.Header, claimedAt time.Time) time.Duration {
	if h.Get("Retry-After") != "" {
		return retryAfter(h, claimedAt)
	}
	var pause time.Duration
	if h.Get("RateLimit-Remaining") == "0" {
		pause, _ = seconds(h.Get("RateLimit-Reset"))
	}
	for limit := range strings.SplitSeq(quoted.ReplaceAllString(strings.Join(h.Values("RateLimit"), ","), ""), ",") {
		parameters := map[string]string{}
		for parameter := range strings.SplitSeq(limit, ";") {
			name, value, _ := strings.Cut(strings.TrimSpace(parameter), "=")
			parameters[name] = value
		}
		if parameters["r"] == "0" {
			reset, _ := seconds(parameters["t"])
			pause = max(pause, reset)
		}
	}
	return pause
}

// quoted is the name of a limit.
var quoted = regexp.MustCompile(`"[^"]*"`)

// seconds reads a number of seconds, which is at most maxRetryAfter.
func seconds(text string) (time.Duration, bool) {
	n, err := strconv.ParseUint(text, 10, 32)
	if errors.Is(err, strconv.ErrRange) {
		return maxRetryAfter, true
	}
	return min(time.Duration(n)*time.Second, maxRetryAfter), err == nil
}

// retryAfter reads a pause in seconds or up to a date. The date is compared with the response's own Date, without one with the
// database's time of the claim: no clock of this process matters.
func retryAfter(h http.Header, claimedAt time.Time) time.Duration {
	value := h.Get("Retry-After")
	if pause, ok := seconds(value); ok {
		return pause
	}
	until, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	now, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		now = claimedAt
	}
	if now.IsZero() {
		return 0
	}
	return max(0, min(until.Sub(now), maxRetryAfter))
}

// broken is a request without a response that may have been received.
func (s *sink) broken(ctx context.Context, to target, sent *sending, err error) error {
	// Only fixed words: net/http quotes what it cannot parse, which may echo the request.
	what := errors.New("broke off, or gave no valid HTTP response; see its log, and check that url names an HTTP server")
	switch {
	case ctx.Err() != nil:
		what = reason.TimedOut(fmt.Sprintf("gave no response within %s; raise timeout, or make it respond sooner", s.timeout))
	case sent.unanswered():
		return dispatcher.Unanswered(reason.With(reason.ConnectionFailed, fmt.Errorf("%s closed the connection without a response; it was kept from an earlier request. It may have received the event, which is sent again", to.name)))
	case errors.Is(err, errSent), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF),
		errors.Is(err, net.ErrClosed), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		what = errors.New("closed the connection without a response; the destination's log may say why")
	}
	return reason.With(reason.ConnectionFailed, fmt.Errorf("%s %w. It may have received the event, so this counts as an attempt", to.name, what))
}

// peer is who connections are made to.
var peer = reason.Peer{Name: "the destination", Hosts: "url", TLS: "tls", Plain: "use an http:// url"}

// unreachable is a failure before anything was sent.
func (s *sink) unreachable(to target, err error) error {
	return dispatcher.Unavailable(peer.Unreachable(to.name, s.timeout, err))
}

func (t target) interrupted(ctx context.Context) error {
	return base.Interrupted(ctx, "posting to "+t.name)
}
