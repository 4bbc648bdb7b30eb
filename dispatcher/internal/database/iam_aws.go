//go:build !nocloud

package database

import (
	"context"
	"net"
	"strconv"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/feature/rds/auth"
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
		return auth.BuildAuthToken(ctx, net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port))), in, c.User, loaded.Credentials)
	}
}
