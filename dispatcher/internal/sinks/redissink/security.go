package redissink

import (
	"context"
	"net"

	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/files"
)

type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// credentials reads the login's files. go-redis calls it for each connection.
func (s *sink) credentials(context.Context) (user, password string, err error) {
	switch auth := s.cfg.Auth; {
	case auth == nil:
		return "", "", nil
	case auth.Basic != nil:
		return files.Basic("auth.basic", auth.Basic)
	default:
		password, err = files.Credential("auth.passwordFile", auth.PasswordFile)
		return "", password, err
	}
}
