package awsenv_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher/internal/awsenv"
)

// An agent that takes requests and says nothing is not waited for for ever, neither by a caller nor by the
// search that they share: when it responds again, the next one has credentials.
func TestSilentAgent(t *testing.T) {
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
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"} {
		t.Setenv(name, "")
	}
	t.Setenv("AWS_CONFIG_FILE", os.DevNull)
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", os.DevNull)
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", agent.URL)

	cfg, err := awsenv.Load(t.Context(), 300*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	_, err = cfg.Credentials.Retrieve(t.Context())
	if !errors.Is(err, context.DeadlineExceeded) || awsenv.Ended(err) || strings.Contains(err.Error(), "number of attempts") {
		t.Errorf("while the agent is silent: %v; want no more than that the time is over: the search continues", err)
	}
	responds.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for {
		c, err := cfg.Credentials.Retrieve(ctx)
		if err == nil {
			if c.AccessKeyID != "key" {
				t.Errorf("the key is %q", c.AccessKeyID)
			}
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("the agent responds, and the credentials do not arrive: %v", err)
		}
	}
}
