package database

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/api/spec"
)

// tokenTimeout bounds the search for a token. Tests have more.
var tokenTimeout = 10 * time.Second

// token makes the password of a new connection. It keeps what it may until that is about to end.
type token func(ctx context.Context, c *pgx.ConnConfig) (string, error)

// tokens returns what makes the passwords of a login, nil for a login that has its own.
func tokens(i *spec.IAM) token {
	if i == nil {
		return nil
	}
	switch i.Provider {
	case spec.IAMAWS:
		return awsTokens(i.Region)
	case spec.IAMGoogle:
		return googleTokens()
	default:
		return azureTokens()
	}
}

// logIn gives a connection its token, if it needs one. A token is never sent without TLS.
func logIn(ctx context.Context, t token, c *pgx.ConnConfig) error {
	if t == nil {
		return nil
	}
	plain := c.TLSConfig == nil
	for _, f := range c.Fallbacks {
		plain = plain || f.TLSConfig == nil
	}
	if plain {
		return &problem{ConnectionFailed, "database.iam needs TLS, and the connection may go without; set the database's tls.mode to VerifyFull with an authority, or to Require, and name the server by a host", nil}
	}
	ctx, cancel := context.WithTimeout(ctx, tokenTimeout)
	defer cancel()
	password, err := t(ctx, c)
	if err != nil {
		return noToken(err)
	}
	c.Password = password
	return nil
}

// noToken says why there is none. Of an SDK's message only the beginning is shown: the rest is all that it
// tried.
func noToken(err error) error {
	var known *problem
	if errors.As(err, &known) {
		return known
	}
	first, _, _ := strings.Cut(err.Error(), "\n")
	return &problem{AuthenticationFailed, fmt.Sprintf("database.iam: there is no token for the identity of this process: %.200s; give the pod's service account an identity of the provider, or correct the environment", first), nil}
}

// present makes a connection show the client's certificate, if there is one, to every server that requests one.
func present(c *pgx.ConnConfig, d spec.Database) error {
	if d.ClientCertFile == "" {
		return nil
	}
	if _, err := readFile("the database's tls.clientCertSecretRef", d.ClientCertFile); err != nil {
		return err
	}
	if _, err := readFile("its tls.clientKeySecretRef", d.ClientKeyFile); err != nil {
		return err
	}
	pair, err := tls.LoadX509KeyPair(d.ClientCertFile, d.ClientKeyFile)
	if err != nil {
		return &problem{AuthenticationFailed, fmt.Sprintf("the database's tls.clientCertSecretRef (%s) and its tls.clientKeySecretRef (%s) are not a certificate with its key; write both in PEM", d.ClientCertFile, d.ClientKeyFile), err}
	}
	all := []*tls.Config{c.TLSConfig}
	for _, f := range c.Fallbacks {
		all = append(all, f.TLSConfig)
	}
	for _, t := range all {
		if t != nil {
			// Not Certificates: one whose authority the server does not list would be held back, and
			// the server would complain of none instead of a wrong one.
			t.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
		}
	}
	return nil
}
