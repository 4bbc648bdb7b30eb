package redissink

import (
	"context"
	"net"

	"github.com/outbox-operator/outbox-operator/dispatcher/sink/files"
)

type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// credentials reads the login's files. go-redis asks for it at each connection.
func (s *sink) credentials(context.Context) (user, password string, err error) {
	for _, f := range []struct {
		field, path string
		value       *string
	}{{"usernameFile", s.cfg.UsernameFile, &user}, {"passwordFile", s.cfg.PasswordFile, &password}} {
		if f.path == "" {
			continue
		}
		if *f.value, err = files.Credential(f.field, f.path); err != nil {
			return "", "", err
		}
	}
	return user, password, nil
}
