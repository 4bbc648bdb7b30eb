package database

import (
	"crypto/tls"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/api/spec"
)

// present makes a connection show the client's certificate, if there is one, to every server that requests one.
func present(c *pgx.ConnConfig, d spec.Database) error {
	if d.ClientCertFile == "" {
		return nil
	}
	if _, err := readFile("database.clientCertFile", d.ClientCertFile); err != nil {
		return err
	}
	if _, err := readFile("database.clientKeyFile", d.ClientKeyFile); err != nil {
		return err
	}
	pair, err := tls.LoadX509KeyPair(d.ClientCertFile, d.ClientKeyFile)
	if err != nil {
		return &problem{AuthenticationFailed, fmt.Sprintf("database.clientCertFile (%s) and database.clientKeyFile (%s) are not a certificate with its key; write both in PEM", d.ClientCertFile, d.ClientKeyFile), err}
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
