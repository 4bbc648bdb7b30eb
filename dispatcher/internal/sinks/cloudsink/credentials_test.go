package cloudsink

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/pstest"
	"github.com/aws/aws-sdk-go-v2/service/sns"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
)

// A file of keys is read again when the service refuses its keys, or when it had none.
//
// CONTRACT: C-32, C-102
func TestRotatedKeysOfAWS(t *testing.T) {
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} {
		t.Setenv(name, "")
	}
	file := sinktest.File(t, "credentials", "")
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", file)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if !strings.Contains(r.Header.Get("Authorization"), "Credential=new/") {
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, "<ErrorResponse><Error><Type>Sender</Type><Code>InvalidClientTokenId</Code></Error></ErrorResponse>")
			return
		}
		_, _ = io.WriteString(w, "<PublishBatchResponse><PublishBatchResult><Successful><member><Id>0</Id><MessageId>1</MessageId></member></Successful></PublishBatchResult></PublishBatchResponse>")
	}))
	t.Cleanup(server.Close)
	n, err := NewSNS(config.SNSSink{TopicARN: "arn:aws:sns:eu-west-1:" + account + ":orders", Endpoint: server.URL}, nil)
	s := opened(t, n, err)
	service := s.service.(*awsService[*sns.Client])
	keys := func(id string) {
		sinktest.Write(t, file, "[default]\naws_access_key_id = "+id+"\naws_secret_access_key = "+credentialSecret+"\n")
		if !service.made.IsZero() {
			service.made = time.Now().Add(-2 * reloadAfter)
		}
	}
	verify(t, "an empty file", deliver(t, s, newEvent()), unavailable, reason.AuthenticationFailed, "no credentials: ")
	keys("old")
	verify(t, "the file was empty when it was read", s.Probe(t.Context()), unavailable, reason.AuthenticationFailed, "no credentials: ")
	verify(t, "old keys", deliver(t, s, newEvent()), unavailable, reason.AuthenticationFailed, "responded InvalidClientTokenId; check the credentials")
	made := service.made
	verify(t, "old keys, at once", deliver(t, s, newEvent()), unavailable, reason.AuthenticationFailed, "responded InvalidClientTokenId; check the credentials")
	if service.made != made || made.IsZero() {
		t.Error("each refusal reads the environment again")
	}
	keys("new")
	verify(t, "the old keys were read", s.Probe(t.Context()), unavailable, reason.AuthenticationFailed, "responded InvalidClientTokenId; check the credentials")
	if err := deliver(t, s, newEvent()); err != nil {
		t.Errorf("the file has new keys: %v", err)
	}
}

// refusing refuses a number of requests for their credentials.
type refusing int

func (r *refusing) React(any) (handled bool, ret any, err error) {
	if *r--; *r >= 0 {
		return true, nil, status.Error(codes.Unauthenticated, payloadSecret)
	}
	return false, nil, nil
}

// A client of Pub/Sub reads the credentials when it is made, so one whose credentials are refused is replaced.
//
// CONTRACT: C-32, C-102
func TestRotatedKeysOfPubSub(t *testing.T) {
	refused := refusing(2)
	p, server := newPubSub(t, config.Binary, pstest.ServerReactorOption{FuncName: "Publish", Reactor: &refused})
	service := p.sink.service.(*pubsubService)
	if err := p.sink.Probe(t.Context()); err != nil {
		t.Fatal(err)
	}
	client := service.client
	verify(t, "refused", deliver(t, p.sink, newEvent()), unavailable, reason.AuthenticationFailed, "check the credentials")
	if service.client != client {
		t.Error("a client is replaced at once: each refusal would read the environment again")
	}
	client.made = time.Now().Add(-2 * reloadAfter)
	verify(t, "refused, later", deliver(t, p.sink, newEvent()), unavailable, reason.AuthenticationFailed, "check the credentials")
	if err := deliver(t, p.sink, newEvent()); err != nil || len(server.Messages()) != 1 {
		t.Errorf("%d messages arrived: %v", len(server.Messages()), err)
	}
	if service.client == client {
		t.Error("the client with the credentials that are refused is kept")
	}
}
