package httpsink

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/files"
)

const (
	secretPrefix = "whsec_"
	// What the Standard Webhooks specification says of a secret's length.
	minSecret, maxSecret = 24, 64
)

// secrets are the keys that a request is signed with, none for no signature.
type secrets [][]byte

// newSigning returns the secrets of the file, none without one.
func newSigning(path string) *files.Watched[secrets] {
	if path == "" {
		return files.Watch(func() (secrets, error) { return nil, nil })
	}
	return files.Watch(func() (secrets, error) { return readSecrets(path) }, path)
}

// readSecrets reads one secret from each line, or from between spaces.
func readSecrets(path string) (keys secrets, err error) {
	content, err := files.Read("signingSecretFile", path)
	if err != nil {
		return nil, err
	}
	for n, word := range bytes.Fields(content) {
		text, prefixed := strings.CutPrefix(string(word), secretPrefix)
		key, err := base64.StdEncoding.DecodeString(text)
		if !prefixed || err != nil || len(key) < minSecret || len(key) > maxSecret {
			return nil, fmt.Errorf("signingSecretFile: secret %d in %s is none of Standard Webhooks; write %s and %d to %d random bytes in base64",
				n+1, path, secretPrefix, minSecret, maxSecret)
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("signingSecretFile: %s is empty; write the secret into it", path)
	}
	return keys, nil
}

// sign adds the headers of Standard Webhooks: one signature for each secret, so that a consumer may
// know the old or the new one while they change.
func (keys secrets) sign(header http.Header, events []*dispatcher.Event, body []byte, now time.Time) {
	if len(keys) == 0 {
		return
	}
	id, stamp := webhookID(events), strconv.FormatInt(now.Unix(), 10)
	signatures := make([]string, len(keys))
	for i, key := range keys {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(id + "." + stamp + "."))
		mac.Write(body)
		signatures[i] = "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	}
	header["Webhook-Id"] = []string{id}
	header["Webhook-Timestamp"] = []string{stamp}
	header["Webhook-Signature"] = []string{strings.Join(signatures, " ")}
}

// webhookID is the event's id; of several events, an id made from theirs, the same whenever the same
// events go together.
func webhookID(events []*dispatcher.Event) string {
	if len(events) == 1 {
		return events[0].ID.String()
	}
	ids := make([]byte, 0, len(uuid.UUID{})*len(events))
	for _, e := range events {
		ids = append(ids, e.ID[:]...)
	}
	return uuid.NewSHA1(uuid.Nil, ids).String()
}
