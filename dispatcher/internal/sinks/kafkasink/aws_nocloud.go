//go:build nocloud

package kafkasink

import (
	"context"
	"errors"

	"github.com/twmb/franz-go/pkg/sasl/aws"

	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
)

type awsLogin struct{}

func (*awsLogin) auth(context.Context) (aws.Auth, error) {
	return aws.Auth{}, reason.With(reason.AuthenticationFailed, errors.New("this binary has no SDK of a cloud; build it without the tag nocloud"))
}
