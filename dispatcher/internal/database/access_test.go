package database

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// lives is how long what the issuer gives out is good for.
const lives = 2 * time.Second

func init() { tokenTimeout = need.Wait }

// issuer stands in for the agents of the clouds that give out tokens, which live for seconds here.
type issuer struct {
	mu     sync.Mutex
	issued map[string]time.Time
	used   map[string]bool
	url    string
}

func newIssuer(t *testing.T) *issuer {
	i := &issuer{issued: map[string]time.Time{}, used: map[string]bool{}}
	next := func() (name string, ends time.Time) {
		i.mu.Lock()
		defer i.mu.Unlock()
		name, ends = fmt.Sprintf("TOKEN%d", len(i.issued)), time.Now().Add(lives)
		i.issued[name] = ends
		return name, ends
	}
	mux := http.NewServeMux()
	say := func(w http.ResponseWriter, v any) {
		w.Header().Set("Metadata-Flavor", "Google")
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v)
	}
	mux.HandleFunc("/aws", func(w http.ResponseWriter, _ *http.Request) {
		name, ends := next()
		say(w, map[string]any{"AccessKeyId": name, "SecretAccessKey": secret, "Token": secret, "Expiration": ends.UTC().Format(time.RFC3339Nano)})
	})
	mux.HandleFunc("/computeMetadata/v1/instance/service-accounts/default/token", func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("scopes") != sqlLogin {
			http.Error(w, "another scope", http.StatusBadRequest)
			return
		}
		name, _ := next()
		say(w, map[string]any{"access_token": name, "expires_in": int(lives.Seconds()), "token_type": "Bearer"})
	})
	mux.HandleFunc("/azure", func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("resource") != strings.TrimSuffix(azureDatabases, "/.default") {
			http.Error(w, "another resource", http.StatusBadRequest)
			return
		}
		name, ends := next()
		say(w, map[string]any{"access_token": name, "expires_on": fmt.Sprint(ends.Unix()), "resource": r.FormValue("resource"), "token_type": "Bearer"})
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	i.url = server.URL
	return i
}

// accepts reports whether a password is a token, or is signed with one, that has not ended.
func (i *issuer) accepts(password string) bool {
	name := password
	if signed, err := url.Parse("https://" + password); err == nil && signed.Query().Get("Action") == "connect" {
		name, _, _ = strings.Cut(signed.Query().Get("X-Amz-Credential"), "/")
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	ends, ok := i.issued[name]
	ok = ok && time.Now().Before(ends.Add(time.Minute)) // it was good when the connection began, however long that took
	i.used[name] = i.used[name] || ok
	return ok
}

func (i *issuer) tokens() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return len(i.used)
}

// gateway is a PostgreSQL in front of another one that takes tokens over TLS, as the clouds' do. It returns its
// address and the file of its authority.
func gateway(t *testing.T, behind string, accepts func(password string) bool) (address, ca string) {
	t.Helper()
	signer := sinktest.NewAuthority(t, "test")
	secure := &tls.Config{Certificates: []tls.Certificate{signer.Sign(t, "server", sinktest.InAnHour()).TLS}}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_ = pass(conn, secure, behind, accepts) // the client says what it met
			}()
		}
	}()
	return listener.Addr().String(), file(t, signer.PEM)
}

func pass(raw net.Conn, secure *tls.Config, behind string, accepts func(string) bool) error {
	if _, err := pgproto3.NewBackend(raw, raw).ReceiveStartupMessage(); err != nil {
		return err
	}
	if _, err := raw.Write([]byte("S")); err != nil {
		return err
	}
	conn := tls.Server(raw, secure)
	client := pgproto3.NewBackend(conn, conn)
	if _, err := client.ReceiveStartupMessage(); err != nil {
		return err
	}
	client.Send(&pgproto3.AuthenticationCleartextPassword{})
	if err := client.Flush(); err != nil {
		return err
	}
	if err := client.SetAuthType(pgproto3.AuthTypeCleartextPassword); err != nil {
		return err
	}
	message, err := client.Receive()
	if err != nil {
		return err
	}
	if password, ok := message.(*pgproto3.PasswordMessage); !ok || !accepts(password.Password) {
		client.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: "28P01", Message: "the token has ended"})
		return client.Flush()
	}
	server, err := pgconn.Connect(context.Background(), behind)
	if err != nil {
		return err
	}
	h, err := server.Hijack()
	if err != nil {
		return err
	}
	defer h.Conn.Close()
	client.Send(&pgproto3.AuthenticationOk{})
	for name, value := range h.ParameterStatuses {
		client.Send(&pgproto3.ParameterStatus{Name: name, Value: value})
	}
	client.Send(&pgproto3.BackendKeyData{ProcessID: h.PID, SecretKey: h.SecretKey})
	client.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	if err := client.Flush(); err != nil {
		return err
	}
	go func() { _, _ = io.Copy(h.Conn, conn); h.Conn.Close() }()
	_, err = io.Copy(conn, h.Conn)
	return err
}

// Connections are made with tokens that end after seconds, for as long as the process lives.
//
// CONTRACT: C-102
func TestIAM(t *testing.T) {
	behind := pgtest.Empty(t)
	i := newIssuer(t)
	address, ca := gateway(t, behind, i.accepts)
	host, _, err := net.SplitHostPort(address)
	check(t, err)
	t.Setenv("HOME", t.TempDir()) // no login of a person
	t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", i.url+"/aws")
	t.Setenv("AWS_REGION", "eu-central-1")
	t.Setenv("GCE_METADATA_HOST", strings.TrimPrefix(i.url, "http://"))
	t.Setenv("IDENTITY_ENDPOINT", i.url+"/azure")
	t.Setenv("IDENTITY_HEADER", secret)
	for _, provider := range []string{spec.IAMAWS, spec.IAMGoogle, spec.IAMAzure} {
		t.Run(provider, func(t *testing.T) {
			d := spec.Database{DSN: "postgres://dispatcher@" + address + "/shop", SSLMode: "VerifyFull", CAFile: ca, IAM: &spec.IAM{Provider: provider}}
			pool, err := Pool(t.Context(), d, "orders")
			check(t, err)
			defer pool.Close()
			before := i.tokens()
			tick := time.NewTicker(50 * time.Millisecond)
			defer tick.Stop()
			for made := 0; i.tokens() < before+3; made++ {
				pool.Reset()
				if err := pool.Ping(t.Context()); err != nil {
					reason, message := Classify(err)
					t.Fatalf("connection %d: %s, %s", made, reason, message)
				}
				if made > 20*60 {
					t.Fatal("the first tokens were used for a minute, and live for 2s")
				}
				<-tick.C
			}
			conn, err := Connect(t.Context(), d, "orders")
			check(t, err)
			check(t, conn.Close(t.Context()))

			d.SSLMode, d.CAFile = "Prefer", ""
			if _, err := Connect(t.Context(), d, "orders"); err == nil || !strings.Contains(err.Error(), "set the database's tls.mode to VerifyFull with an authority") {
				t.Errorf("with TLS or without: %v, want that it must be with TLS", err)
			}
		})
	}
	several := spec.Database{DSN: "postgres://dispatcher@" + host + ":1," + host + ":2/shop", SSLMode: "Require", IAM: &spec.IAM{Provider: spec.IAMAWS}}
	need.Fails(t, "a token of AWS is for one host", "several hosts: %v", need.Err(Connect(t.Context(), several, "orders")))
}

// Without an identity the reason and the remedy are reported, and no more of what the SDK has tried than its beginning.
func TestIAMWithoutIdentity(t *testing.T) {
	refuses := httptest.NewServer(http.NotFoundHandler())
	defer refuses.Close()
	t.Setenv("HOME", t.TempDir())
	t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", refuses.URL)
	t.Setenv("GCE_METADATA_HOST", strings.TrimPrefix(refuses.URL, "http://"))
	t.Setenv("IDENTITY_ENDPOINT", refuses.URL)
	t.Setenv("IDENTITY_HEADER", secret)
	for _, provider := range []string{spec.IAMAWS, spec.IAMGoogle, spec.IAMAzure} {
		_, err := Connect(t.Context(), spec.Database{DSN: "postgres://dispatcher@127.0.0.1:1/shop", SSLMode: "Require", IAM: &spec.IAM{Provider: provider, Region: "eu-central-1"}}, "orders")
		need.Must(t, err != nil, "%s: connected", provider)
		reason, message := Classify(err)
		if reason != AuthenticationFailed || !strings.Contains(message, "there is no token for the identity of this process: ") || strings.Contains(message, secret) || len(message) > 500 {
			t.Errorf("%s: %s, %s", provider, reason, message)
		}
	}
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
func TestClientCertificateIsTheLogin(t *testing.T) {
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
	before, after := sinktest.NewAuthority(t, "test"), sinktest.NewAuthority(t, "test")
	put(t, admin, "clients.pem", before.PEM)
	_, err = admin.Exec(t.Context(), "alter system set ssl_ca_file = 'clients.pem'")
	check(t, err)
	put(t, admin, "clients.pem", before.PEM)

	login := before.Sign(t, "dispatcher", sinktest.InAnHour())
	d := spec.Database{
		DSN:     change(t, srv.DSN("postgres"), func(u *url.URL) { u.User = url.User("dispatcher"); u.RawQuery = "" }),
		SSLMode: "VerifyCA", CAFile: file(t, ca), ClientCertFile: file(t, login.CertPEM), ClientKeyFile: file(t, login.KeyPEM),
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

	put(t, admin, "clients.pem", after.PEM)
	// Over a new connection. The server's alert may be lost in the reset that follows it: then it is tried again.
	reset := func(err error) bool { return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) }
	began := time.Now()
	for _, err = pool.Exec(t.Context(), "select 1"); reset(err) && time.Since(began) < need.Wait; {
		_, err = pool.Exec(t.Context(), "select 1")
	}
	if reason, message := Classify(err); reason != CertificateInvalid || !strings.Contains(message, "the server does not accept the client's certificate") {
		t.Errorf("a certificate of another authority: %s, %s", reason, message)
	}
	login = after.Sign(t, "dispatcher", sinktest.InAnHour())
	check(t, os.WriteFile(d.ClientKeyFile, []byte(login.KeyPEM), 0o600))
	_, err = pool.Exec(t.Context(), "select 1")
	if reason, message := Classify(err); reason != AuthenticationFailed || !strings.Contains(message, "are not a certificate with its key; write both in PEM") {
		t.Errorf("a key of another certificate: %s, %s", reason, message)
	}
	check(t, os.WriteFile(d.ClientCertFile, []byte(login.CertPEM), 0o600))
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
