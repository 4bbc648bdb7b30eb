package awsenv

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// An agent that takes requests and says nothing is not waited for for ever, neither by a caller nor by the
// search that they share: when it responds again, the next one has credentials.
func TestSilentAgentIsGivenUp(t *testing.T) {
	var responds atomic.Bool
	over := make(chan struct{})
	agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !responds.Load() {
			select {
			case <-r.Context().Done(): // the client gave up
			case <-over:
			}
			return
		}
		fmt.Fprint(w, `{"AccessKeyId":"key","SecretAccessKey":"secret"}`)
	}))
	t.Cleanup(func() { close(over); agent.Close() })
	emptyEnvironment(t)
	t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", agent.URL)

	cfg, err := Load(t.Context(), 300*time.Millisecond)
	need.OK(t, err)
	_, err = cfg.Credentials.Retrieve(t.Context())
	if !errors.Is(err, context.DeadlineExceeded) || strings.Contains(err.Error(), "number of attempts") {
		t.Errorf("while the agent is silent: %v; want no more than that the time is over: the search continues", err)
	}
	responds.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), need.Wait)
	defer cancel()
	for {
		c, err := cfg.Credentials.Retrieve(ctx)
		if err == nil {
			need.Want(t, "key", "the key is %q", c.AccessKeyID)
			return
		}
		need.Must(t, ctx.Err() == nil, "the agent responds, and the credentials do not arrive: %v", err)
	}
}

func emptyEnvironment(t *testing.T) {
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE",
		"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"} {
		t.Setenv(name, "")
	}
	t.Setenv("AWS_CONFIG_FILE", os.DevNull)
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", os.DevNull)
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
}

// A file of keys is read again, also when it had none; those of a moment ago are kept.
//
// CONTRACT: C-102
func TestRotatedKeysAreReadAgain(t *testing.T) {
	emptyEnvironment(t)
	file := filepath.Join(t.TempDir(), "credentials")
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", file)
	cfg, err := Load(t.Context(), time.Minute)
	need.OK(t, err)
	later := func() {
		r := cfg.Credentials.(*renewed)
		r.loaded = r.loaded.Add(-2 * keep)
	}
	want := func(key string) {
		t.Helper()
		if c, err := cfg.Credentials.Retrieve(t.Context()); c.AccessKeyID != key || (err != nil) != (key == "") {
			t.Errorf("the key is %q, %v; want %q", c.AccessKeyID, err, key)
		}
	}
	want("")
	for _, key := range []string{"old", "new"} {
		need.OK(t, os.WriteFile(file, []byte("[default]\naws_access_key_id = "+key+"\naws_secret_access_key = secret\n"), 0o600))
		later()
		want(key)
	}
	need.OK(t, os.Remove(file))
	want("new")
}
