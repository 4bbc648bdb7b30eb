package database

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// sign returns a certificate of a login, and its key.
func (a authority) sign(t *testing.T, login string) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(t, err)
	leaf := &x509.Certificate{SerialNumber: big.NewInt(3), Subject: pkix.Name{CommonName: login}, NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, leaf, a.cert, private.Public(), a.key)
	check(t, err)
	keyDER, err := x509.MarshalECPrivateKey(private)
	check(t, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}))
}

// put writes a file into the server's directory, and has the server read its files again.
func put(t *testing.T, admin *pgx.Conn, name, text string) {
	t.Helper()
	var dir string
	check(t, admin.QueryRow(t.Context(), "show data_directory").Scan(&dir))
	info, err := os.Stat(dir)
	check(t, err)
	owner := info.Sys().(*syscall.Stat_t)
	path := filepath.Join(dir, name)
	check(t, os.WriteFile(path, []byte(text), 0o600))
	check(t, os.Chown(path, int(owner.Uid), int(owner.Gid)))
	var loaded, now time.Time
	check(t, admin.QueryRow(t.Context(), "select pg_conf_load_time()").Scan(&loaded))
	_, err = admin.Exec(t.Context(), "select pg_reload_conf()")
	check(t, err)
	for now = loaded; !now.After(loaded); { // the reload is a signal
		check(t, admin.QueryRow(t.Context(), "select pg_conf_load_time()").Scan(&now))
	}
}

// A client's certificate is the login, and is read again for each new connection. An open connection stays.
//
// CONTRACT: C-102
func TestClientCertificate(t *testing.T) {
	t.Parallel()
	srv := pgtest.Server(t)
	ca, _ := enableTLS(t, srv.DSN("postgres"))
	admin, err := pgx.Connect(t.Context(), srv.DSN("postgres"))
	check(t, err)
	defer admin.Close(context.Background())
	_, err = admin.Exec(t.Context(), "create role dispatcher login")
	check(t, err)
	var rules string
	check(t, admin.QueryRow(t.Context(), "select pg_read_file(current_setting('hba_file'))").Scan(&rules))
	put(t, admin, "pg_hba.conf", "hostssl all dispatcher all cert clientcert=verify-full\nhost all dispatcher all reject\n"+rules)
	before, after := newAuthority(t), newAuthority(t)
	put(t, admin, "clients.pem", before.pem)
	_, err = admin.Exec(t.Context(), "alter system set ssl_ca_file = 'clients.pem'")
	check(t, err)
	put(t, admin, "clients.pem", before.pem)

	cert, key := before.sign(t, "dispatcher")
	d := config.Database{
		DSN:     change(t, srv.DSN("postgres"), func(u *url.URL) { u.User = url.User("dispatcher"); u.RawQuery = "" }),
		SSLMode: "VerifyCA", CAFile: file(t, ca), ClientCertFile: file(t, cert), ClientKeyFile: file(t, key),
	}
	pool, err := Pool(t.Context(), d, "orders")
	check(t, err)
	defer pool.Close()
	lives, err := pool.Acquire(t.Context())
	if err != nil {
		reason, message := Classify(err)
		t.Fatalf("%s: %s", reason, message)
	}
	defer lives.Release()

	put(t, admin, "clients.pem", after.pem)
	// Over a new connection. The server's alert may be lost in the reset that follows it: then it is tried again.
	reset := func(err error) bool { return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) }
	began := time.Now()
	for _, err = pool.Exec(t.Context(), "select 1"); reset(err) && time.Since(began) < time.Minute; {
		_, err = pool.Exec(t.Context(), "select 1")
	}
	if reason, message := Classify(err); reason != CertificateInvalid || !strings.Contains(message, "the server does not accept the client's certificate") {
		t.Errorf("a certificate of another authority: %s, %s", reason, message)
	}
	cert, key = after.sign(t, "dispatcher")
	check(t, os.WriteFile(d.ClientKeyFile, []byte(key), 0o600))
	_, err = pool.Exec(t.Context(), "select 1")
	if reason, message := Classify(err); reason != AuthenticationFailed || !strings.Contains(message, "are not a certificate with its key; write both in PEM") {
		t.Errorf("a key of another certificate: %s, %s", reason, message)
	}
	check(t, os.WriteFile(d.ClientCertFile, []byte(cert), 0o600))
	if _, err = pool.Exec(t.Context(), "select 1"); err != nil {
		t.Errorf("the new certificate is not used: %v", err)
	}
	if _, err = lives.Exec(t.Context(), "select 1"); err != nil {
		t.Errorf("the connection from before does not stay open: %v", err)
	}
	conn, err := Connect(t.Context(), d, "orders")
	check(t, err)
	check(t, conn.Close(t.Context()))
	if c := pool.Config(); c.MaxConnLifetime != renewAfter || c.MaxConnLifetimeJitter != renewSpread {
		t.Errorf("connections live for %v and %v", c.MaxConnLifetime, c.MaxConnLifetimeJitter)
	}
}
