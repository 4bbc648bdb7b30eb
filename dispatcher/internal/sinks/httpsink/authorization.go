package httpsink

import (
	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/files"
)

// newAuthorization returns the value of the header Authorization, "" for none.
func newAuthorization(auth *config.HTTPAuth) *files.Watched[string] {
	if auth == nil {
		return files.Watch(func() (string, error) { return "", nil })
	}
	return files.Watch(func() (string, error) { return files.Authorization("auth", auth) }, files.AuthorizationPaths(auth)...)
}
