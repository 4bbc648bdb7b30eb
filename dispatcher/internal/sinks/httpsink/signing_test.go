package httpsink

import (
	"bytes"
	"encoding/base64"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
)

// secret returns a secret of n bytes.
func secret(fill byte, n int) string {
	return secretPrefix + base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{fill}, n))
}

type webhook struct {
	header http.Header
	body   []byte
}

func webhooks(t *testing.T) (address string, got chan webhook) {
	got = make(chan webhook, 10)
	address, _ = serve(t, "", nil, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		got <- webhook{r.Header, body}
	}))
	return address, got
}

// Requests verify with the specification's own library, with the old secret and the new one, in every
// mode, and not with another.
func TestSignaturesVerifyWithEitherSecret(t *testing.T) {
	address, got := webhooks(t)
	older, newer := secret('a', 24), secret('b', 64)
	for _, mode := range []config.ContentMode{config.Binary, config.Structured, config.Batch} {
		cfg := plant(t, "http", address)
		cfg.ContentMode = mode
		cfg.SigningSecretFile = file(t, "secret", newer+"\n"+older+"\n")
		s := open(t, cfg)
		one, two := newEvent(), newEvent()
		batches := [][]*dispatcher.Event{{one}, {one}}
		if mode == config.Batch {
			batches = append(batches, []*dispatcher.Event{one, two}, []*dispatcher.Event{one, two}, []*dispatcher.Event{two, one})
		}
		var ids []string
		for _, batch := range batches {
			if err := s.Deliver(t.Context(), batch)[0]; err != nil {
				t.Fatal(err)
			}
			w := <-got
			ids = append(ids, w.header.Get("webhook-id"))
			for _, key := range []string{older, newer} {
				if err := verifier(t, key).Verify(w.body, w.header); err != nil {
					t.Errorf("mode %s: %v", mode, err)
				}
				if verifier(t, key).Verify(append(w.body, ' '), w.header) == nil {
					t.Errorf("mode %s: another body has the same signature", mode)
				}
			}
			if verifier(t, secret('c', 24)).Verify(w.body, w.header) == nil {
				t.Errorf("mode %s: the signature is good for another secret", mode)
			}
		}
		if ids[0] != one.ID.String() || ids[1] != ids[0] {
			t.Errorf("mode %s: the webhook-id of one event is %q and %q, want the event's id", mode, ids[0], ids[1])
		}
		if mode == config.Batch && (ids[2] != ids[3] || ids[2] == ids[0] || ids[2] == ids[4] || uuid.Validate(ids[2]) != nil) {
			t.Errorf("the webhook-ids are %q; want those of equal batches to be equal, and only those", ids)
		}
	}
}

func verifier(t *testing.T, key string) *standardwebhooks.Webhook {
	t.Helper()
	v, err := standardwebhooks.NewWebhook(key)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// Each sending has its own time: a retry of a day later verifies too.
func TestSignatureTime(t *testing.T) {
	keys := secrets{[]byte("a key of some length")}
	e := newEvent()
	seen := map[string]bool{}
	for _, at := range []time.Time{time.Unix(1_770_000_000, 999_000_000), time.Unix(1_770_086_400, 0)} {
		h := http.Header{}
		keys.sign(h, []*dispatcher.Event{e}, e.Payload, at)
		if h.Get("webhook-timestamp") != strconv.FormatInt(at.Unix(), 10) {
			t.Errorf("the timestamp of %s is %s", at, h.Get("webhook-timestamp"))
		}
		seen[h.Get("webhook-signature")] = true
	}
	if len(seen) != 2 {
		t.Errorf("%d signatures at two times, want 2", len(seen))
	}
}

func TestNoSigning(t *testing.T) {
	address, got := webhooks(t)
	if err := post(t, open(t, plant(t, "http", address))); err != nil {
		t.Fatal(err)
	}
	for name := range (<-got).header {
		if strings.HasPrefix(name, "Webhook-") {
			t.Errorf("the header %s was sent without signing", name)
		}
	}
}

// A secret that cannot be used sends nothing unsigned, and heals when the file does.
//
// CONTRACT: C-32, C-73
func TestSecretFile(t *testing.T) {
	address, got := webhooks(t)
	path := file(t, "secret", "")
	cfg := plant(t, "http", address)
	cfg.SigningSecretFile = path
	s := open(t, cfg)
	for content, text := range map[string]string{
		"":                                       "is empty; write the value into it",
		" \n \n":                                 "is empty; write the secret into it",
		"whsec_" + tokenSecret:                   "secret 1 in " + path + " is none of Standard Webhooks; write whsec_ and 24 to 64 random bytes",
		secret('a', 23):                          "secret 1 in ",
		secret('a', 65):                          "secret 1 in ",
		secret('a', 24) + " whsk_" + tokenSecret: "secret 2 in ",
		strings.TrimPrefix(secret('a', 24), secretPrefix): "secret 1 in ",
	} {
		write(t, path, content)
		want(t, "Deliver", post(t, s), true, reason.AuthenticationFailed, text)
		want(t, "Probe", s.Probe(t.Context()), true, reason.AuthenticationFailed, text)
	}
	if len(got) != 0 {
		t.Error("an event was sent without a signature")
	}
	write(t, path, secret('d', 32))
	if err := post(t, s); err != nil {
		t.Fatal(err)
	}
	if w := <-got; verifier(t, secret('d', 32)).Verify(w.body, w.header) != nil {
		t.Error("the new secret was not used")
	}
}

// What instruments consumers reads the plain header.
//
// CONTRACT: C-70
func TestTraceHeaders(t *testing.T) {
	got := make(chan http.Header, 1)
	address, _ := serve(t, "", nil, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got <- r.Header }))
	e := newEvent()
	e.Headers = map[string]string{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tracestate": "a=b"}
	for _, mode := range []config.ContentMode{config.Binary, config.Structured, config.Batch} {
		cfg := plant(t, "http", address)
		cfg.ContentMode = mode
		if err := open(t, cfg).Deliver(t.Context(), []*dispatcher.Event{e})[0]; err != nil {
			t.Fatal(err)
		}
		if h := <-got; h.Get("traceparent") != e.Headers["traceparent"] || h.Get("tracestate") != "a=b" {
			t.Errorf("%s: the request has traceparent %q and tracestate %q", mode, h.Get("traceparent"), h.Get("tracestate"))
		}
	}
}
