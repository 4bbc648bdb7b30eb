//go:build !nocloud

package database

import (
	"context"
	"net"
	"strconv"
	"sync"

	"cloud.google.com/go/auth"
	"cloud.google.com/go/auth/credentials"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/aws/aws-sdk-go-v2/aws"
	rds "github.com/aws/aws-sdk-go-v2/feature/rds/auth"
	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/dispatcher/internal/awsenv"
)

// awsTokens signs a token of 15 minutes for each connection, with credentials that the SDK keeps until they are
// about to end. A token is for one host, port and user.
func awsTokens(region string) token {
	var mu sync.Mutex
	var loaded *aws.Config
	return func(ctx context.Context, c *pgx.ConnConfig) (string, error) {
		for _, f := range c.Fallbacks {
			if f.Host != c.Host || f.Port != c.Port {
				return "", &problem{ConnectionFailed, "database.iam: a token of AWS is for one host, and the connection names several; name one, such as the cluster's writer endpoint", nil}
			}
		}
		mu.Lock()
		defer mu.Unlock()
		if loaded == nil {
			cfg, err := awsenv.Load(ctx, tokenTimeout)
			if err != nil {
				return "", err
			}
			loaded = &cfg
		}
		in := region
		if in == "" {
			in = loaded.Region
		}
		if in == "" {
			return "", &problem{ConnectionFailed, "database.iam.region is missing, and the environment names none; set it to the database's region", nil}
		}
		return rds.BuildAuthToken(ctx, net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port))), in, c.User, loaded.Credentials)
	}
}

// azureDatabases is the scope that Azure's databases take as a login.
const azureDatabases = "https://ossrdbms-aad.database.windows.net/.default"

// azureTokens gets a token with the default credential, which keeps it until it is about to end.
func azureTokens() token {
	var mu sync.Mutex
	var found *azidentity.DefaultAzureCredential
	return func(ctx context.Context, _ *pgx.ConnConfig) (string, error) {
		mu.Lock()
		defer mu.Unlock()
		if found == nil {
			c, err := azidentity.NewDefaultAzureCredential(nil)
			if err != nil {
				return "", err
			}
			found = c
		}
		t, err := found.GetToken(ctx, policy.TokenRequestOptions{Scopes: []string{azureDatabases}})
		return t.Token, err
	}
}

// sqlLogin is the scope that Cloud SQL takes as a login.
const sqlLogin = "https://www.googleapis.com/auth/sqlservice.login"

// googleTokens gets an access token with the default credentials, which keep it until it is about to end.
func googleTokens() token {
	var mu sync.Mutex
	var found *auth.Credentials
	return func(ctx context.Context, _ *pgx.ConnConfig) (string, error) {
		mu.Lock()
		defer mu.Unlock()
		if found == nil {
			c, err := credentials.DetectDefault(&credentials.DetectOptions{Scopes: []string{sqlLogin}})
			if err != nil {
				return "", err
			}
			found = c
		}
		t, err := found.Token(ctx)
		if err != nil {
			return "", err
		}
		return t.Value, nil
	}
}
