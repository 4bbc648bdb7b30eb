package kafkasink

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
)

// withoutAWS leaves nothing of this machine's to find.
func withoutAWS(t *testing.T) {
	for _, name := range []string{
		"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_ROLE_ARN",
		"AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI",
	} {
		t.Setenv(name, "")
	}
	t.Setenv("AWS_CONFIG_FILE", "/does/not/exist")
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", "/does/not/exist")
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
}

// awsMechanism is what a client logs in with.
func awsMechanism(t *testing.T) sasl.Mechanism {
	t.Helper()
	client, err := kgo.NewClient(login(&config.Auth{Type: config.AuthAWSMSKIAM})...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client.OptValue(kgo.SASL).([]sasl.Mechanism)[0]
}

// logIn returns the key and the session token of the login at a broker of MSK, and the region.
func logIn(t *testing.T, m sasl.Mechanism) string {
	t.Helper()
	_, first, err := m.Authenticate(t.Context(), "b-1.orders.abc123.c2.kafka.eu-central-1.amazonaws.com:9098")
	if err != nil {
		t.Fatal(err)
	}
	var said map[string]string
	if err := json.Unmarshal(first, &said); err != nil {
		t.Fatal(err)
	}
	scope := strings.Split(said["x-amz-credential"], "/")
	return strings.Join([]string{scope[0], said["x-amz-security-token"], scope[2]}, " ")
}

// A pod's identity, as EKS Pod Identity gives it, is requested at the first login, kept while it is
// valid, and requested again when it is about to expire. A new token of the pod needs no restart.
//
// CONTRACT: C-73
func TestAWSIdentity(t *testing.T) {
	withoutAWS(t)
	var lookups atomic.Int32
	podToken := sinktest.File(t, "token", "first")
	agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, lasts := lookups.Add(1), time.Hour
		if n == 1 {
			lasts = time.Minute
		}
		fmt.Fprintf(w, `{"AccessKeyId":"key-%d","SecretAccessKey":%q,"Token":"%s-%d","Expiration":%q}`,
			n, sinktest.PasswordSecret, r.Header.Get("Authorization"), n, time.Now().Add(lasts).UTC().Format(time.RFC3339))
	}))
	t.Cleanup(agent.Close)
	t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", agent.URL)
	t.Setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", podToken)

	m := awsMechanism(t)
	if n := lookups.Load(); n != 0 {
		t.Errorf("%d lookups before a login", n)
	}
	for _, want := range []string{"key-1 first-1 eu-central-1", "key-2 second-2 eu-central-1", "key-2 second-2 eu-central-1"} {
		if got := logIn(t, m); got != want {
			t.Errorf("logs in with %s, want %s", got, want)
		}
		sinktest.Write(t, podToken, "second")
	}
}

// CONTRACT: C-32, C-73
func TestAWSEnvironment(t *testing.T) {
	withoutAWS(t)
	m := awsMechanism(t)
	_, _, err := m.Authenticate(t.Context(), "b-1.example:9098")
	if reason.Of(err) != reason.AuthenticationFailed || !strings.HasPrefix(err.Error(), "no credentials: ") || !strings.Contains(err.Error(), "; give the pods an identity, as by spec.pods.serviceAccount") {
		t.Errorf("without credentials: %v", err)
	}
	t.Setenv("AWS_ACCESS_KEY_ID", "key")
	t.Setenv("AWS_SECRET_ACCESS_KEY", sinktest.PasswordSecret)
	t.Setenv("AWS_SESSION_TOKEN", "session")
	if got := logIn(t, awsMechanism(t)); got != "key session eu-central-1" {
		t.Errorf("with credentials: logs in with %s", got)
	}
}
