package files

import (
	"encoding/base64"
	"fmt"
	"strings"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
)

// Authorization returns the value of HTTP's header of that name for auth, which is what the
// configuration has at field. It fails as [Credential] does.
func Authorization(field string, auth *config.HTTPAuth) (string, error) {
	unusable := func(file, path, remedy string) error {
		return reason.With(reason.AuthenticationFailed, fmt.Errorf("%s.%s: %s holds %s alone into it", field, file, path, remedy))
	}
	if auth.Basic == nil {
		const file = "tokenFile"
		token, err := Credential(field+"."+file, auth.TokenFile)
		if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return "", unusable(file, auth.TokenFile, "spaces, line breaks or other characters that no token has; write the token")
		}
		return "Bearer " + token, err
	}
	user, password, err := Basic(field+".basic", auth.Basic)
	if err != nil {
		return "", err
	}
	if strings.Contains(user, ":") {
		if auth.Basic.UsernameFile == "" {
			return "", reason.With(reason.AuthenticationFailed, fmt.Errorf("%s.basic.username has a colon, which a user name cannot have; write the name alone", field))
		}
		return "", unusable("basic.usernameFile", auth.Basic.UsernameFile, "a colon, which a user name cannot have; write the name")
	}
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password)), nil
}

// AuthorizationPaths are the files that auth names, for [Watch].
func AuthorizationPaths(auth *config.HTTPAuth) (paths []string) {
	if auth.Basic == nil {
		return []string{auth.TokenFile}
	}
	if auth.Basic.UsernameFile != "" {
		paths = append(paths, auth.Basic.UsernameFile)
	}
	return append(paths, auth.Basic.PasswordFile)
}

// Basic returns the user and the password of auth, which is what the configuration has at field. It
// fails as [Credential] does.
func Basic(field string, auth *config.BasicAuth) (user, password string, err error) {
	user = auth.Username
	if auth.UsernameFile != "" {
		if user, err = Credential(field+".usernameFile", auth.UsernameFile); err != nil {
			return "", "", err
		}
	}
	if password, err = Credential(field+".passwordFile", auth.PasswordFile); err != nil {
		return "", "", err
	}
	return user, password, nil
}
