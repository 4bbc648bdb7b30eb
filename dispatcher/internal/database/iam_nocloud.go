//go:build nocloud

package database

import (
	"context"

	"github.com/jackc/pgx/v5"
)

func awsTokens(string) token { return leftOut }
func googleTokens() token    { return leftOut }
func azureTokens() token     { return leftOut }

func leftOut(context.Context, *pgx.ConnConfig) (string, error) {
	return "", &problem{AuthenticationFailed, "database.iam: this binary has no SDK of a cloud; build it without the tag nocloud", nil}
}
