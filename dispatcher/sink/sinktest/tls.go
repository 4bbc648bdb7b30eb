package sinktest

import (
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
)

// Certificates of the servers and clients of a test.
type Certificates struct {
	CA, Other *Authority
	// Server is for 127.0.0.1, Expired too, Elsewhere for the host name of NewCertificates alone.
	Server, Expired, Elsewhere Leaf
	// Client is of CA, Stranger of Other, Late has expired.
	Client, Stranger, Late Leaf

	host string
}

// NewCertificates makes them: those of clients have the name client.
func NewCertificates(t testing.TB, client, elsewhere string) *Certificates {
	t.Helper()
	ca, other, past := NewAuthority(t, "good"), NewAuthority(t, "other"), time.Now().Add(-time.Minute)
	return &Certificates{
		CA: ca, Other: other, host: elsewhere,
		Server: ca.Sign(t, "server", InAnHour()), Expired: ca.Sign(t, "server", past), Elsewhere: ca.Sign(t, "server", InAnHour(), elsewhere),
		Client: ca.Sign(t, client, InAnHour()), Stranger: other.Sign(t, client, InAnHour()), Late: ca.Sign(t, client, past),
	}
}

// Trust is the settings of a client that trusts the authorities in pem.
func (c *Certificates) Trust(t testing.TB, pem string) *spec.TLS {
	return &spec.TLS{CAFile: File(t, "ca.crt", pem)}
}

// Present is the settings of a client that trusts CA, and has a certificate.
func (c *Certificates) Present(t testing.TB, l Leaf) *spec.TLS {
	return &spec.TLS{CAFile: File(t, "ca.crt", c.CA.PEM), ClientCertFile: File(t, "tls.crt", l.CertPEM), ClientKeyFile: File(t, "tls.key", l.KeyPEM)}
}

// TLS is what the servers of one kind need for the checks of their certificates.
type TLS struct {
	*Certificates
	// Plain is the address of a server without TLS, Good, ExpiredAt and ElsewhereAt of those with the
	// certificates of these names, and Mutual of one that wants a client certificate of CA.
	Plain, Good, ExpiredAt, ElsewhereAt, Mutual string
	// Open opens a sink.
	Open func(t *testing.T, address string, cfg *spec.TLS) dispatcher.Sink
	// Renew, Hosts, NoTLS and TLSWanted are parts of the errors: the certificate has expired, it is another
	// host's, the server has no TLS, the client has none. The last is ConnectionFailed, unless WantedReason
	// says otherwise.
	Renew, Hosts, NoTLS, TLSWanted, WantedReason string
	// Parallel says that the cases do not disturb each other.
	Parallel bool
}

// Run runs the checks, each as a subtest (CONTRACT C-32).
func (c TLS) Run(t *testing.T) {
	named := c.Trust(t, c.CA.PEM)
	named.ServerName = c.host
	const authority, refused = "; set tls.caSecretRef or caConfigMapRef (in a dispatcher's file: tls.caFile)", "does not accept the client certificate"
	wanted := c.WantedReason
	if wanted == "" {
		wanted = reason.ConnectionFailed
	}
	for name, test := range map[string]struct {
		address    string
		cfg        *spec.TLS
		word, text string // "" means delivered
	}{
		"trusted":            {c.Good, c.Trust(t, c.CA.PEM), "", ""},
		"two authorities":    {c.Good, c.Trust(t, c.Other.PEM+c.CA.PEM), "", ""},
		"other authority":    {c.Good, c.Trust(t, c.Other.PEM), reason.CertificateInvalid, authority},
		"the system's roots": {c.Good, &spec.TLS{}, reason.CertificateInvalid, authority},
		"no PEM in the file": {c.Good, c.Trust(t, "none"), reason.CertificateInvalid, "holds no certificate in PEM; write"},
		"expired":            {c.ExpiredAt, c.Trust(t, c.CA.PEM), reason.CertificateInvalid, c.Renew},
		"other host":         {c.ElsewhereAt, c.Trust(t, c.CA.PEM), reason.CertificateInvalid, c.Hosts},
		"server name":        {c.ElsewhereAt, named, "", ""},
		"no TLS there":       {c.Plain, c.Trust(t, c.CA.PEM), reason.ConnectionFailed, c.NoTLS},
		"TLS wanted":         {c.Good, nil, wanted, c.TLSWanted},
		"mutual":             {c.Mutual, c.Present(t, c.Client), "", ""},
		"mutual, none":       {c.Mutual, c.Trust(t, c.CA.PEM), reason.CertificateInvalid, refused},
		"mutual, stranger":   {c.Mutual, c.Present(t, c.Stranger), reason.CertificateInvalid, refused},
		"mutual, expired":    {c.Mutual, c.Present(t, c.Late), reason.CertificateInvalid, refused},
	} {
		t.Run(name, func(t *testing.T) {
			if c.Parallel {
				t.Parallel()
			}
			Reaches(t, c.Open(t, test.address, test.cfg), test.word, test.text)
		})
	}
}
