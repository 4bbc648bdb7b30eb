package httpsink

import (
	"errors"

	"github.com/outbox-operator/outbox-operator/dispatcher/config"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/files"
)

// newAuthorization returns the value of the header Authorization, "" for none.
func newAuthorization(auth *config.HTTPAuth) (*files.Watched[string], error) {
	value := func() (string, error) { return files.Authorization("auth", auth) }
	switch {
	case auth == nil, auth.BearerTokenFile == "" && auth.Basic == nil:
		return files.Watch(func() (string, error) { return "", nil }), nil
	case auth.BearerTokenFile != "" && auth.Basic != nil:
		return nil, errors.New("http sink: auth has bearerTokenFile and basic; keep one of them")
	case auth.Basic == nil:
		return files.Watch(value, auth.BearerTokenFile), nil
	case auth.Basic.UsernameFile == "" || auth.Basic.PasswordFile == "":
		return nil, errors.New("http sink: auth.basic needs usernameFile and passwordFile; set both")
	default:
		return files.Watch(value, auth.Basic.UsernameFile, auth.Basic.PasswordFile), nil
	}
}
