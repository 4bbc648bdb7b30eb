package cloudsink

import (
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/pstest"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
)

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
