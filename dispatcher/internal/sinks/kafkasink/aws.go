//go:build !nocloud

package kafkasink

import (
	"context"
	"fmt"
	"strings"
	"sync"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/twmb/franz-go/pkg/sasl/aws"

	"github.com/outbox-operator/outbox-operator/dispatcher/internal/awsenv"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
)

// awsTimeout bounds the search for credentials. Whoever waits for the connection waits longer, and so
// hears what was wrong.
const awsTimeout = connectTimeout / 2

// awsLogin has the credentials of the environment.
type awsLogin struct {
	mu sync.Mutex
	// chain is made at the first login, because it looks into the environment and the files.
	chain awssdk.CredentialsProvider
}

// auth is called for each login. The texts of its errors name roles, files and addresses.
func (l *awsLogin) auth(ctx context.Context) (aws.Auth, error) {
	c, err := l.retrieve(ctx)
	if err != nil {
		return aws.Auth{}, reason.With(reason.AuthenticationFailed, fmt.Errorf("no credentials: %s; give the pods an identity, as by spec.pods.serviceAccount, or credentials in their environment",
			strings.Join(strings.Fields(err.Error()), " ")))
	}
	return aws.Auth{AccessKey: c.AccessKeyID, SecretKey: c.SecretAccessKey, SessionToken: c.SessionToken}, nil
}

func (l *awsLogin) retrieve(ctx context.Context) (c awssdk.Credentials, err error) {
	chain, err := l.get(ctx)
	if err != nil {
		return c, err
	}
	return chain.Retrieve(ctx)
}

func (l *awsLogin) get(ctx context.Context) (awssdk.CredentialsProvider, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.chain == nil {
		cfg, err := awsenv.Load(ctx, awsTimeout)
		if err != nil {
			return nil, err
		}
		l.chain = cfg.Credentials
	}
	return l.chain, nil
}
