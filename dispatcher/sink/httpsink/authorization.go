package httpsink

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"github.com/outbox-operator/outbox-operator/dispatcher/config"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/files"
)

// newAuthorization returns the value of the header Authorization, "" for none.
func newAuthorization(auth *config.HTTPAuth) (*files.Watched[string], error) {
	switch {
	case auth == nil, auth.BearerTokenFile == "" && auth.Basic == nil:
		return files.Watch(func() (string, error) { return "", nil }), nil
	case auth.BearerTokenFile != "" && auth.Basic != nil:
		return nil, errors.New("http sink: auth has bearerTokenFile and basic; keep one of them")
	case auth.Basic == nil:
		path := auth.BearerTokenFile
		return files.Watch(func() (string, error) { return bearer(path) }, path), nil
	case auth.Basic.UsernameFile == "" || auth.Basic.PasswordFile == "":
		return nil, errors.New("http sink: auth.basic needs usernameFile and passwordFile; set both")
	default:
		user, password := auth.Basic.UsernameFile, auth.Basic.PasswordFile
		return files.Watch(func() (string, error) { return basic(user, password) }, user, password), nil
	}
}

func bearer(path string) (string, error) {
	token, err := files.Read("auth.bearerTokenFile", path)
	if err != nil {
		return "", err
	}
	if bytes.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", fmt.Errorf("auth.bearerTokenFile: %s holds spaces, line breaks or other characters that no token has; write the token alone into it", path)
	}
	return "Bearer " + string(token), nil
}

func basic(userFile, passwordFile string) (string, error) {
	user, err := files.Read("auth.basic.usernameFile", userFile)
	if err != nil {
		return "", err
	}
	if strings.Contains(string(user), ":") {
		return "", fmt.Errorf("auth.basic.usernameFile: %s holds a colon, which a user name cannot have; write the name alone into it", userFile)
	}
	password, err := files.Read("auth.basic.passwordFile", passwordFile)
	if err != nil {
		return "", err
	}
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(string(user)+":"+string(password))), nil
}
