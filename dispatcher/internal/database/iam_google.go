//go:build !nocloud

package database

import (
	"context"
	"sync"

	"cloud.google.com/go/auth"
	"cloud.google.com/go/auth/credentials"
	"github.com/jackc/pgx/v5"
)

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
