//go:build !nocloud

package database

import (
	"context"
	"sync"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/jackc/pgx/v5"
)

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
