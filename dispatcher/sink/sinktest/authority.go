package sinktest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
)

// Authority signs certificates that are made in a test.
type Authority struct {
	// Cert is the authority's own certificate, and PEM the same.
	Cert *x509.Certificate
	PEM  string

	key *ecdsa.PrivateKey
}

// NewAuthority makes an authority whose certificate is valid for an hour.
func NewAuthority(t testing.TB, name string) *Authority {
	t.Helper()
	key := newKey(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &Authority{Cert: cert, PEM: encode("CERTIFICATE", der), key: key}
}

// Leaf is a signed certificate with its key (PKCS 8, the one form that every server reads).
type Leaf struct {
	TLS             tls.Certificate
	CertPEM, KeyPEM string
}

// Sign makes a certificate for clients and servers: for 127.0.0.1, or for the names and addresses if any.
func (a *Authority) Sign(t testing.TB, name string, until time.Time, names ...string) Leaf {
	t.Helper()
	key := newKey(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: until,
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if len(names) == 0 {
		names = []string{"127.0.0.1"}
	}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.Cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return Leaf{
		TLS:     tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key},
		CertPEM: encode("CERTIFICATE", der), KeyPEM: encode("PRIVATE KEY", keyDER),
	}
}

// Pool has the authority's certificate.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.Cert)
	return pool
}

// InAnHour is a time until which a certificate of a test is valid.
func InAnHour() time.Time { return time.Now().Add(time.Hour) }

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func encode(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

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
	const authority, refused = "; set tls.caSecretRef or caConfigMapRef", "does not accept the client certificate"
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
