package redissink

import (
	"context"
	"net"

	"github.com/outbox-operator/outbox-operator/dispatcher/config"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/files"
)

type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// newDialer returns a dialer that reads the files of cfg for each connection.
func newDialer(cfg *config.TLS) dialer {
	return func(ctx context.Context, _, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, connectTimeout)
		defer cancel()
		conn, _, err := files.Dial(ctx, cfg, address)
		return conn, err
	}
}

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
