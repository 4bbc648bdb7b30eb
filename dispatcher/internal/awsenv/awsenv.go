// Package awsenv loads what AWS's own tools would take of a pod's environment: the region and credentials,
// of its variables, of their files, of the pod's identity, of the machine.
package awsenv

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials/endpointcreds"
	"github.com/aws/smithy-go/logging"
)

// keep is how long credentials that do not expire are kept, and that there are none. They come from variables and files.
const keep = 5 * time.Second

// Load returns the configuration. Its credentials are searched for when they are first requested, kept
// until they are about to expire, and are never nil. Those that do not expire are read again: a file that has been replaced
// counts 5 seconds later. Load itself and each call of Retrieve take no longer
// than the timeout. The texts of their errors name roles, files and addresses.
func Load(ctx context.Context, timeout time.Duration) (aws.Config, error) {
	cfg, err := load(ctx, timeout)
	cfg.Credentials = &renewed{timeout: timeout, provider: cfg.Credentials, loaded: time.Now()}
	return cfg, err
}

func load(ctx context.Context, timeout time.Duration) (aws.Config, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	// All callers share one search, which continues when they have given up. Without an end of its own, an
	// agent that says nothing would be waited for for ever.
	client := awshttp.NewBuildableClient().WithTimeout(timeout)
	return config.LoadDefaultConfig(ctx,
		config.WithLogger(logging.Nop{}), // its lines are none of ours (CONTRACT C-73)
		config.WithHTTPClient(client),
		// A pod's agent is queried by a client of its own.
		config.WithEndpointCredentialOptions(func(o *endpointcreds.Options) { o.HTTPClient = client }))
}

// renewed are credentials whose search is waited for for so long.
type renewed struct {
	timeout time.Duration

	mu       sync.Mutex
	provider aws.CredentialsProvider // nil: the environment has none
	loaded   time.Time
}

// Retrieve returns the credentials.
func (r *renewed) Retrieve(ctx context.Context) (aws.Credentials, error) {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	provider, old := r.current()
	c, err := retrieve(ctx, provider)
	waits := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) // the search continues
	if !old || waits || err == nil && c.CanExpire {
		return c, err
	}
	cfg, err := load(ctx, r.timeout)
	if err != nil {
		return c, err
	}
	r.mu.Lock()
	r.provider, r.loaded = cfg.Credentials, time.Now()
	r.mu.Unlock()
	return retrieve(ctx, cfg.Credentials)
}

// current returns what was loaded last, and whether that was a while ago.
func (r *renewed) current() (aws.CredentialsProvider, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.provider, time.Since(r.loaded) > keep
}

func retrieve(ctx context.Context, provider aws.CredentialsProvider) (aws.Credentials, error) {
	if provider == nil {
		return aws.Credentials{}, errors.New("the environment has none")
	}
	return provider.Retrieve(ctx)
}
