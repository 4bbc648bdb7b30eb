// Package awsenv loads what AWS's own tools would take of a pod's environment: the region and credentials,
// of its variables, of their files, of the pod's identity, of the machine.
package awsenv

import (
	"context"
	"errors"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials/endpointcreds"
	"github.com/aws/smithy-go/logging"
)

// Load returns the configuration. Its credentials are searched for when they are first requested, kept
// until they are about to expire, and are never nil. Load itself and each call of Retrieve take no longer
// than the timeout. The texts of their errors name roles, files and addresses.
func Load(ctx context.Context, timeout time.Duration) (aws.Config, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	// All callers share one search, which continues when they have given up. Without an end of its own, an
	// agent that says nothing would be waited for for ever.
	client := awshttp.NewBuildableClient().WithTimeout(timeout)
	cfg, err := config.LoadDefaultConfig(ctx,
		config.WithLogger(logging.Nop{}), // its lines are none of ours (CONTRACT C-73)
		config.WithHTTPClient(client),
		// A pod's agent is queried by a client of its own.
		config.WithEndpointCredentialOptions(func(o *endpointcreds.Options) { o.HTTPClient = client }))
	cfg.Credentials = bounded{cfg.Credentials, timeout}
	return cfg, err
}

// Ended reports whether err, of [Load] or of Retrieve, ended the search. Else the caller only stopped waiting for it.
func Ended(err error) bool {
	return !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled)
}

// bounded are credentials whose search is waited for for so long.
type bounded struct {
	aws.CredentialsProvider
	timeout time.Duration
}

// Retrieve returns the credentials.
func (b bounded) Retrieve(ctx context.Context) (aws.Credentials, error) {
	if b.CredentialsProvider == nil {
		return aws.Credentials{}, errors.New("the environment has none")
	}
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	return b.CredentialsProvider.Retrieve(ctx)
}
