package files

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"time"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
)

// TLS reads the files of cfg and returns what a client's connections take. The system's roots are
// trusted when there is no caFile. ServerName stays empty when cfg has none.
// It fails when a file cannot be read or holds something else.
func TLS(cfg *spec.TLS) (*tls.Config, error) {
	c := &tls.Config{ServerName: cfg.ServerName, MinVersion: tls.VersionTLS12}
	if cfg.CAFile != "" {
		pem, err := Read("tls.caSecretRef or caConfigMapRef", cfg.CAFile)
		if err != nil {
			return nil, err
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("tls.caSecretRef or caConfigMapRef: %s holds no certificate in PEM; write the authority's certificate into it", cfg.CAFile)
		}
	}
	if cfg.ClientCertFile != "" {
		cert, err := keyPair(cfg.ClientCertFile, cfg.ClientKeyFile)
		if err != nil {
			return nil, err
		}
		// Not Certificates: a certificate that the server does not request by its authority would
		// be held back, and the server would complain of none instead of a wrong one.
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil }
	}
	return c, nil
}

// TLSPaths are the files that cfg names, for [Watch].
func TLSPaths(cfg *spec.TLS) (paths []string) {
	for _, path := range []string{cfg.CAFile, cfg.ClientCertFile, cfg.ClientKeyFile} {
		if path != "" {
			paths = append(paths, path)
		}
	}
	return paths
}

func keyPair(clientCertFile, clientKeyFile string) (*tls.Certificate, error) {
	certPEM, err := Read("tls.clientCertSecretRef", clientCertFile)
	if err != nil {
		return nil, err
	}
	keyPEM, err := Read("tls.clientKeySecretRef", clientKeyFile)
	if err != nil {
		return nil, err
	}
	cert, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("tls.clientCertSecretRef %s and tls.clientKeySecretRef %s: %w; write a certificate and its key in PEM into them", clientCertFile, clientKeyFile, err)
	}
	return &cert, nil
}

// Credential is Read for what a login takes: it fails with the word [reason.AuthenticationFailed].
func Credential(field, path string) (string, error) {
	content, err := Read(field, path)
	if err != nil {
		return "", reason.With(reason.AuthenticationFailed, err)
	}
	return string(content), nil
}

// Dial connects to host:port, with TLS unless cfg is nil; its files are read for each connection. One
// that cannot be used is an error with the word [reason.CertificateInvalid]. raw is the connection below
// TLS, or conn itself.
func Dial(ctx context.Context, cfg *spec.TLS, address string) (conn, raw net.Conn, err error) {
	var c *tls.Config
	if cfg != nil {
		if c, err = TLS(cfg); err == nil && c.ServerName == "" {
			c.ServerName, _, err = net.SplitHostPort(address)
		}
		if err != nil {
			return nil, nil, reason.With(reason.CertificateInvalid, err)
		}
	}
	raw, err = (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil || c == nil {
		return raw, raw, err
	}
	secure := tls.Client(raw, c)
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, nil, err
	}
	return secure, raw, nil
}

// Dialer returns Dial within limit, as clients' libraries want it.
func Dialer(cfg *spec.TLS, limit time.Duration) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, _, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		conn, _, err := Dial(ctx, cfg, address)
		return conn, err
	}
}
