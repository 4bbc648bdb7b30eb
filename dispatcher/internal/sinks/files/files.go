// Package files reads the credentials and certificates that a sink's configuration names. They rotate
// without a restart: what is made from a file is made again when the file changes. Errors name the
// field, the file and the remedy, never what the file holds (CONTRACT C-73).
package files

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"strings"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/watched"
)

// Read returns a file's content without the line end that editors and echo leave. An empty file is an
// error. field is the field of the sink's configuration that names the file.
func Read(field, path string) ([]byte, error) {
	content, err := spec.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w; make the file, or correct its path", field, err)
	}
	content = bytes.TrimRight(content, "\r\n")
	if len(content) == 0 {
		return nil, fmt.Errorf("%s: %s is empty; write the value into it", field, path)
	}
	return content, nil
}

// Watched is a value that is made from files, and made again when one of them changes.
type Watched[T any] = watched.Value[T]

// Watch returns a value that load makes from the files. Nothing is read before the first Get.
func Watch[T any](load func() (T, error), paths ...string) *Watched[T] {
	return watched.New(load, paths...)
}

// Authorization returns the value of HTTP's header of that name for auth, of type Basic or Token, which is what the
// configuration has at field. It fails as [Credential] does.
func Authorization(field string, auth *spec.Auth) (string, error) {
	user, secret, err := Login(field, auth)
	if err != nil {
		return "", err
	}
	unusable := func(file, path, remedy string) error {
		return reason.With(reason.AuthenticationFailed, fmt.Errorf("%s.%s: %s holds %s alone into it", field, file, path, remedy))
	}
	switch {
	case auth.Type == spec.AuthToken && strings.ContainsFunc(secret, func(r rune) bool { return r <= ' ' || r > '~' }):
		return "", unusable("secretRef", auth.SecretFile, "spaces, line breaks or other characters that no token has; write the token")
	case auth.Type == spec.AuthToken:
		return "Bearer " + secret, nil
	case strings.Contains(user, ":") && auth.UsernameFile != "":
		return "", unusable("usernameKey", auth.UsernameFile, "a colon, which a user name cannot have; write the name")
	case strings.Contains(user, ":"):
		return "", reason.With(reason.AuthenticationFailed, fmt.Errorf("%s.username has a colon, which a user name cannot have; write the name alone", field))
	}
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+secret)), nil
}

// AuthorizationPaths are the files that auth names, for [Watch].
func AuthorizationPaths(auth *spec.Auth) []string {
	if auth.UsernameFile == "" {
		return []string{auth.SecretFile}
	}
	return []string{auth.UsernameFile, auth.SecretFile}
}

// Login returns the name of the user, empty for a type without one, and the secret of auth, which is what the
// configuration has at field. It fails as [Credential] does.
func Login(field string, auth *spec.Auth) (user, secret string, err error) {
	user = auth.Username
	if auth.UsernameFile != "" {
		if user, err = Credential(field+".usernameKey", auth.UsernameFile); err != nil {
			return "", "", err
		}
	}
	if secret, err = Credential(field+".secretRef", auth.SecretFile); err != nil {
		return "", "", err
	}
	return user, secret, nil
}
