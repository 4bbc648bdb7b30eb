package files

import (
	"encoding/base64"
	"fmt"
	"strings"

	"github.com/outbox-operator/outbox-operator/dispatcher/config"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/reason"
)

// Authorization returns the value of HTTP's header of that name for auth, which is what the
// configuration has at field. It fails as [Credential] does.
func Authorization(field string, auth *config.HTTPAuth) (string, error) {
	unusable := func(file, path, remedy string) error {
		return reason.With(reason.AuthenticationFailed, fmt.Errorf("%s.%s: %s holds %s alone into it", field, file, path, remedy))
	}
	if auth.Basic == nil {
		const file = "bearerTokenFile"
		token, err := Credential(field+"."+file, auth.BearerTokenFile)
		if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return "", unusable(file, auth.BearerTokenFile, "spaces, line breaks or other characters that no token has; write the token")
		}
		return "Bearer " + token, err
	}
	const file = "basic.usernameFile"
	user, err := Credential(field+"."+file, auth.Basic.UsernameFile)
	if err != nil {
		return "", err
	}
	if strings.Contains(user, ":") {
		return "", unusable(file, auth.Basic.UsernameFile, "a colon, which a user name cannot have; write the name")
	}
	password, err := Credential(field+".basic.passwordFile", auth.Basic.PasswordFile)
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password)), err
}
