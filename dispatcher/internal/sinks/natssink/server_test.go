package natssink

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/servers/nats"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// theServer is the one server without security of this process. The first test that needs it starts it.
// Tests that share it do not run in parallel: some stop it.
var theServer = need.Shared[*nats.Server]{Start: func(ctx context.Context) (*nats.Server, error) { return nats.Start(ctx, nats.Options{}) }}

func TestMain(m *testing.M) { pgtest.Main(theServer.Main(m)) }

func server(t testing.TB) *nats.Server { return theServer.Get(t) }

// start makes a server for one test.
func start(t testing.TB, opts nats.Options) *nats.Server {
	t.Helper()
	s, err := nats.Start(t.Context(), opts)
	need.OK(t, err)
	t.Cleanup(func() {
		need.Want(t, nil, "%v", s.Stop(context.Background()))
	})
	return s
}

// admin is another client than the sink's.
func admin(t testing.TB, s *nats.Server, opts ...client.Option) jetstream.JetStream {
	t.Helper()
	conn, err := client.Connect(s.URL(), opts...)
	need.OK(t, err)
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	need.OK(t, err)
	return js
}

// newStream makes a stream in files, which captures the subjects that start with its name.
func newStream(t testing.TB, s *nats.Server, change func(*jetstream.StreamConfig), opts ...client.Option) string {
	t.Helper()
	name := "stream-" + uuid.NewString()
	cfg := jetstream.StreamConfig{Name: name, Subjects: []string{name + ".>"}, Storage: jetstream.FileStorage}
	if change != nil {
		change(&cfg)
	}
	need.OK(t, need.Err(admin(t, s, opts...).CreateStream(t.Context(), cfg)))
	return name
}

// consume reads all that is in a stream, in its order.
func consume(t testing.TB, s *nats.Server, stream string, opts ...client.Option) (msgs []jetstream.Msg) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), need.Wait)
	defer cancel()
	js := admin(t, s, opts...)
	var left uint64
	var reader jetstream.Consumer
	find := func() error { // a cluster that has no leader yet does not respond
		once, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		of, err := js.Stream(once, stream)
		if err != nil {
			return err
		}
		left = of.CachedInfo().State.Msgs
		reader, err = of.OrderedConsumer(once, jetstream.OrderedConsumerConfig{})
		return err
	}
	for {
		err := find()
		if err == nil {
			break
		}
		need.Must(t, ctx.Err() == nil, "%v", err)
	}
	if left == 0 {
		return nil
	}
	all, err := reader.Messages()
	need.OK(t, err)
	defer all.Stop()
	for uint64(len(msgs)) < left {
		m, err := all.Next(jetstream.NextContext(ctx))
		need.Must(t, err == nil, "%d of %d messages were read: %v", len(msgs), left, err)
		msgs = append(msgs, m)
	}
	return msgs
}

// plainConfig is the configuration for a stream of a server without security.
func plainConfig(s *nats.Server, stream string) spec.NATSSink {
	return spec.NATSSink{Servers: []string{s.URL()}, Subject: stream + ".events"}
}

func open(t testing.TB, cfg spec.NATSSink) *sink {
	t.Helper()
	return sinktest.Opened(t, build(cfg, nil), nil)
}

// isPublish reports whether a write of the client's has a message in it.
func isPublish(written []byte) bool { return bytes.Contains(written, []byte("HPUB ")) }

// gate is in the way of a sink's writes when it is shut.
type gate struct {
	mu      sync.Mutex
	shutAt  chan struct{} // nil: open
	waiting chan struct{}
	conns   []net.Conn
}

func (s *sink) gate() *gate {
	g := &gate{}
	dial := s.dial
	s.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		g.conns = append(g.conns, c)
		return &gatedConn{c, g, make(chan struct{}), sync.Once{}}, nil
	}
	return g
}

// shut keeps writes waiting until their connection is closed. It returns a channel that gets a value
// for each.
func (g *gate) shut() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shutAt, g.waiting = make(chan struct{}), make(chan struct{}, 100)
	return g.waiting
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting = nil
}

// cut breaks the connections, and the writes that wait.
func (g *gate) cut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.shutAt)
	for _, c := range g.conns {
		_ = c.Close()
	}
}

type gatedConn struct {
	net.Conn
	gate   *gate
	closed chan struct{}
	once   sync.Once
}

func (c *gatedConn) Write(b []byte) (int, error) {
	c.gate.mu.Lock()
	waiting, broken := c.gate.waiting, c.gate.shutAt
	c.gate.mu.Unlock()
	if waiting == nil {
		return c.Conn.Write(b)
	}
	waiting <- struct{}{}
	select {
	case <-c.closed:
	case <-broken:
	}
	return 0, net.ErrClosed
}

func (c *gatedConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// hello is the address of something that says a word and hangs up.
func hello(t testing.TB, word string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	need.OK(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if word != "" {
				_, _ = c.Write([]byte(word + "\r\n"))
			}
			_ = c.Close()
		}
	}()
	return l.Addr().String()
}

// Each way to log in, on the real server, as it should be and as it should not.
//
// CONTRACT: C-32, C-73
func TestLoginFailuresNameTheRemedy(t *testing.T) {
	key, stranger := newKey(t, nkeys.CreateUser), newKey(t, nkeys.CreateUser)
	users := start(t, nats.Options{Settings: fmt.Sprintf(`accounts: {A: {jetstream: enabled, users: [
		{user: alice, password: %q}, {nkey: %s},
		{user: mute, password: %q, permissions: {publish: {deny: "secret.>"}}},
		{user: deaf, password: %q, permissions: {subscribe: {deny: "_INBOX.>"}}}]}}`, sinktest.PasswordSecret, key.public, sinktest.PasswordSecret, sinktest.PasswordSecret)})
	token := start(t, nats.Options{Settings: fmt.Sprintf("authorization: {token: %q}", sinktest.PasswordSecret)})
	op := newOperator(t)
	jwt := start(t, nats.Options{Settings: op.settings()})
	in := time.Now().Add(time.Hour)
	plain := server(t)
	streams := map[*nats.Server]string{
		users: newStream(t, users, nil, client.UserInfo("alice", sinktest.PasswordSecret)),
		token: newStream(t, token, nil, client.Token(sinktest.PasswordSecret)),
		jwt:   newStream(t, jwt, nil, client.UserCredentials(sinktest.File(t, "admin", op.user(t, key, in)))),
		plain: newStream(t, plain, nil),
	}
	basic := func(user, password string) *spec.Auth {
		return sinktest.Login(t, spec.AuthBasic, user, password)
	}
	creds := func(content string) *spec.Auth {
		return &spec.Auth{Type: spec.AuthCredentials, SecretFile: sinktest.File(t, "user.creds", content)}
	}
	seed := func(content string) *spec.Auth {
		return &spec.Auth{Type: spec.AuthNKey, SecretFile: sinktest.File(t, "seed", content)}
	}
	tok := func(content string) *spec.Auth {
		return &spec.Auth{Type: spec.AuthToken, SecretFile: sinktest.File(t, "token", content)}
	}
	const check, refused = "; add auth, or check what its files hold", reason.AuthenticationFailed
	for _, test := range []struct {
		name       string
		server     *nats.Server
		auth       *spec.Auth
		word, text string // "" means delivered
	}{
		{"password", users, basic("alice", sinktest.PasswordSecret), "", ""},
		{"wrong password", users, basic("alice", sinktest.WrongSecret), refused, check},
		{"unknown user", users, basic(sinktest.WrongSecret, sinktest.PasswordSecret), refused, check},
		{"no login", users, nil, refused, check},
		{"empty password", users, basic("alice", ""), refused, "password is empty; write the value into it"},
		{"may not subscribe", users, basic("deaf", sinktest.PasswordSecret), refused, "; allow _INBOX.> in the permissions"},
		{"NKey", users, seed(key.seed + "\n"), "", ""},
		{"unknown NKey", users, seed(stranger.seed), refused, check},
		{"no NKey", users, seed(sinktest.WrongSecret), refused, "seed holds no seed of a user; write a user's seed, which starts with SU into it"},
		{"NKey that the server does not want", plain, seed(key.seed), refused, "; no NKey is known there"},
		{"token", token, tok(sinktest.PasswordSecret + "\n"), "", ""},
		{"wrong token", token, tok(sinktest.WrongSecret), refused, check},
		{"credentials", jwt, creds(op.user(t, key, in)), "", ""},
		{"credentials of another operator", jwt, creds(newOperator(t).user(t, key, in)), refused, check},
		{"credentials that expired", jwt, creds(op.user(t, key, time.Now().Add(-time.Minute))), refused, "; "},
		{"no credentials", jwt, creds(sinktest.WrongSecret), refused, "user.creds holds no seed of a user; write a .creds file"},
		{"a password that the server does not want", plain, basic("alice", sinktest.PasswordSecret), "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			cfg := plainConfig(test.server, streams[test.server])
			cfg.Auth = test.auth
			sinktest.Reaches(t, open(t, cfg), test.word, test.text)
		})
	}
}

// Where every event goes to a subject that the user may not publish to, none spends an attempt. Probe says
// so when the user may query that.
//
// CONTRACT: C-32
func TestForbiddenSubjectIsUnavailable(t *testing.T) {
	srv := start(t, nats.Options{Settings: fmt.Sprintf(`accounts: {A: {jetstream: enabled, users: [
		{user: alice, password: %[1]q},
		{user: mute, password: %[1]q, permissions: {publish: ["other.>"], subscribe: ["_INBOX.>"]}},
		{user: reads, password: %[1]q, permissions: {publish: ["other.>", "$JS.API.STREAM.NAMES", "$SYS.REQ.USER.INFO"], subscribe: ["_INBOX.>"]}},
		{user: denied, password: %[1]q, permissions: {publish: {deny: ["*.events"]}}}]}}`, sinktest.PasswordSecret)})
	stream := newStream(t, srv, nil, client.UserInfo("alice", sinktest.PasswordSecret))
	for user, probed := range map[string]bool{"mute": false, "reads": true, "denied": true} {
		cfg := plainConfig(srv, stream)
		cfg.Auth = sinktest.Login(t, spec.AuthBasic, user, sinktest.PasswordSecret)
		s := open(t, cfg)
		const text = "; allow it in the permissions of the dispatcher's user, under publish"
		sinktest.Want(t, user+", Deliver", sinktest.Send(t, s), true, reason.AuthenticationFailed, text)
		if err := s.Probe(t.Context()); probed {
			sinktest.Want(t, user+", Probe", err, true, reason.AuthenticationFailed, text)
		} else if err != nil {
			t.Errorf("%s may not find: %v", user, err)
		}
	}
}

func TestCoversFollowsSubjectWildcards(t *testing.T) {
	for pattern, want := range map[string]bool{
		"a.b.c": true, "a.*.c": true, "a.>": true, ">": true, "*.*.*": true,
		"a.b": false, "a.b.c.d": false, "a.b.c.>": false, "*": false, "a.*.d": false,
	} {
		need.That(t, covers(pattern, "a.b.c") == want, "%s covers a.b.c: %v, want %v", pattern, !want, want)
	}
}

// A message that the user may not publish fails soon, alone, and not as one that is lost.
//
// CONTRACT: C-32
func TestForbiddenMessageFailsAlone(t *testing.T) {
	srv := start(t, nats.Options{Settings: fmt.Sprintf(`accounts: {A: {jetstream: enabled, users: [
		{user: alice, password: %q},
		{user: mute, password: %q, permissions: {publish: ["*.may.>"], subscribe: ["_INBOX.>"]}}]}}`, sinktest.PasswordSecret, sinktest.PasswordSecret)})
	stream := newStream(t, srv, nil, client.UserInfo("alice", sinktest.PasswordSecret))
	cfg := plainConfig(srv, stream)
	cfg.Subject = ""
	cfg.Auth = sinktest.Login(t, spec.AuthBasic, "mute", sinktest.PasswordSecret)
	s := open(t, cfg)
	batch := make([]*dispatcher.Event, batchSize)
	for i := range batch { // the refusals come before the others are stored
		batch[i] = sinktest.NewEvent()
		batch[i].Topic = stream + ".may.é"
		if i < 10 {
			batch[i].Topic = stream + []string{".not.é", ".not.é.may"}[i%2]
		}
	}
	for i, err := range s.Deliver(t.Context(), batch) {
		if i >= 10 {
			need.Want(t, nil, "a message that the user may publish: %v", err)
		} else {
			sinktest.Outcome(t, "a message that the user may not publish", err, sinktest.Fault, reason.AuthenticationFailed, "; allow it in the permissions of the dispatcher's user, under publish")
		}
	}
	need.Want(t, nil, "Probe needs no more than that: %v", s.Probe(t.Context()))
	need.Want(t, batchSize-10, "%d messages arrived, want %d", len(consume(t, srv, stream, client.UserInfo("alice", sinktest.PasswordSecret))))
}

// CONTRACT: C-32
func TestTLSFailuresNameTheRemedy(t *testing.T) {
	certs := sinktest.NewCertificates(t, "client", "nats.example")
	plain, good, mutual := server(t), startTLS(t, certs.Server, ""), startMutual(t, certs)
	elsewhere := startTLS(t, certs.Elsewhere, "")
	expired := startTLS(t, certs.Expired, "")
	streams := map[string]string{plain.Address(): newStream(t, plain, nil), expired.Address(): "any"}
	for _, srv := range []*nats.Server{good, elsewhere, mutual} {
		streams[srv.Address()] = newStream(t, srv, nil, trusting(certs))
	}
	openTLS := func(t *testing.T, scheme, address string, cfg *spec.TLS) dispatcher.Sink {
		return open(t, spec.NATSSink{Servers: []string{scheme + "://" + address}, Subject: streams[address] + ".events", Access: spec.Access{TLS: cfg}})
	}
	const authority, noTLS = "; set tls.caSecretRef or caConfigMapRef", "; no TLS is spoken there"
	sinktest.TLS{
		Certificates: certs, Plain: plain.Address(), Good: good.Address(), Mutual: mutual.Address(), ElsewhereAt: elsewhere.Address(),
		ExpiredAt: expired.Address(),
		Open: func(t *testing.T, address string, cfg *spec.TLS) dispatcher.Sink {
			return openTLS(t, "nats", address, cfg)
		},
		Renew: "; renew the server's certificate", Hosts: "; use hosts in servers that the certificate names",
		NoTLS: noTLS, TLSWanted: authority, WantedReason: reason.CertificateInvalid,
	}.Run(t)
	// The scheme tls is TLS, with or without settings.
	sinktest.Reaches(t, openTLS(t, "tls", good.Address(), certs.Trust(t, certs.CA.PEM)), "", "")
	sinktest.Reaches(t, openTLS(t, "tls", good.Address(), nil), reason.CertificateInvalid, authority)
	sinktest.Reaches(t, openTLS(t, "tls", plain.Address(), nil), reason.ConnectionFailed, noTLS)
}

// startTLS starts a server with a certificate, and more settings of TLS.
func startTLS(t *testing.T, leaf sinktest.Leaf, more string) *nats.Server {
	return start(t, nats.Options{Settings: fmt.Sprintf("tls: {cert_file: %q, key_file: %q %s}", sinktest.File(t, "crt", leaf.CertPEM), sinktest.File(t, "key", leaf.KeyPEM), more)})
}

// startMutual starts a server that wants certificates of its clients.
func startMutual(t *testing.T, certs *sinktest.Certificates) *nats.Server {
	return startTLS(t, certs.Server, fmt.Sprintf(", ca_file: %q, verify: true", sinktest.File(t, "ca", certs.CA.PEM)))
}

// trusting is another client with a certificate. It takes the servers' for any host.
func trusting(certs *sinktest.Certificates) client.Option {
	return client.Secure(&tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{certs.Client.TLS}, MinVersion: tls.VersionTLS12})
}

// No server there, or another one.
//
// CONTRACT: C-32
func TestUnreachableServerIsPassedOver(t *testing.T) {
	srv := server(t)
	stream := newStream(t, srv, nil)
	for address, text := range map[string]string{
		"nats://127.0.0.1:1":              "connection refused; check that it runs",
		"nats://nats.invalid:4222":        "; check the hosts in servers, and the dispatcher's DNS",
		"nats://" + hello(t, "HTTP/1.1 "): "; no NATS is spoken there: correct the ports in servers",
		"nats://" + hello(t, ""):          "closed without a response; check that it runs",
	} {
		cfg := plainConfig(srv, stream)
		cfg.Servers = []string{address}
		sinktest.Reaches(t, open(t, cfg), reason.ConnectionFailed, text)
		cfg.Servers = append(cfg.Servers, srv.URL())
		sinktest.Reaches(t, open(t, cfg), "", "") // the other one will do
	}
}

// The server rejects the connection with the old password, and the file is read for the next one.
func TestFilesAreReadForEachConnection(t *testing.T) {
	srv := start(t, nats.Options{Settings: fmt.Sprintf("authorization: {user: alice, password: %q}", sinktest.WrongSecret)})
	stream := newStream(t, srv, nil, client.UserInfo("alice", sinktest.WrongSecret))
	cfg := plainConfig(srv, stream)
	cfg.Auth = sinktest.Login(t, spec.AuthBasic, "alice", sinktest.WrongSecret)
	s := open(t, cfg)
	need.OK(t, sinktest.Send(t, s))
	// The server's password changes while it runs: it disconnects clients with the old one.
	s.mu.Lock()
	old := s.current
	s.mu.Unlock()
	need.OK(t, srv.Configure(nats.Options{Settings: fmt.Sprintf("authorization: {user: alice, password: %q}", sinktest.PasswordSecret)}))
	<-old.gone
	sinktest.Want(t, "the old password", sinktest.Send(t, s), true, reason.AuthenticationFailed, "; add auth, or check what its files hold")
	sinktest.Write(t, cfg.Auth.SecretFile, sinktest.PasswordSecret+"\n")
	need.Want(t, nil, "the new password: %v", sinktest.Send(t, s))

	certs := sinktest.NewCertificates(t, "client", "")
	srv = startMutual(t, certs)
	stream = newStream(t, srv, nil, trusting(certs))
	sinktest.Rotated(t, certs, nil, func(t *testing.T, tls *spec.TLS) dispatcher.Sink {
		cfg := plainConfig(srv, stream)
		cfg.TLS = tls
		return open(t, cfg)
	})
}

// key is an NKey.
type key struct {
	pair         nkeys.KeyPair
	public, seed string
}

func newKey(t *testing.T, create func() (nkeys.KeyPair, error)) key {
	t.Helper()
	pair, err := create()
	need.OK(t, err)
	public, err := pair.PublicKey()
	need.OK(t, err)
	seed, err := pair.Seed()
	need.OK(t, err)
	return key{pair, public, string(seed)}
}

// operator signs an account, which signs users: what nsc does.
type operator struct {
	account, system            key
	jwt, accountJWT, systemJWT string
}

func newOperator(t *testing.T) operator {
	root, account, system := newKey(t, nkeys.CreateOperator), newKey(t, nkeys.CreateAccount), newKey(t, nkeys.CreateAccount)
	sign := func(subject string, storage int, about map[string]any) string {
		about["version"] = 2
		about["limits"] = map[string]any{"subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1, "leaf": -1, "mem_storage": storage, "disk_storage": storage}
		return signed(t, root, subject, time.Time{}, about)
	}
	return operator{
		account: account, system: system,
		jwt:        sign(root.public, 0, map[string]any{"type": "operator", "system_account": system.public}),
		accountJWT: sign(account.public, -1, map[string]any{"type": "account"}),
		systemJWT:  sign(system.public, 0, map[string]any{"type": "account"}),
	}
}

func (o operator) settings() string {
	return fmt.Sprintf("operator: %s\nresolver: MEMORY\nresolver_preload: {%s: %s, %s: %s}\n",
		o.jwt, o.account.public, o.accountJWT, o.system.public, o.systemJWT)
}

// user is a .creds file.
func (o operator) user(t *testing.T, k key, until time.Time) string {
	jwt := signed(t, o.account, k.public, until, map[string]any{"type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1})
	return "-----BEGIN NATS USER JWT-----\n" + jwt + "\n------END NATS USER JWT------\n\n-----BEGIN USER NKEY SEED-----\n" + k.seed + "\n------END USER NKEY SEED------\n"
}

func signed(t *testing.T, by key, subject string, until time.Time, about map[string]any) string {
	t.Helper()
	claims := map[string]any{"jti": "x", "iat": time.Now().Unix(), "iss": by.public, "sub": subject, "name": subject, "nats": about}
	if !until.IsZero() {
		claims["exp"] = until.Unix()
	}
	body, err := json.Marshal(claims)
	need.OK(t, err)
	text := base64.RawURLEncoding.EncodeToString([]byte(`{"typ":"JWT","alg":"ed25519-nkey"}`)) + "." + base64.RawURLEncoding.EncodeToString(body)
	sig, err := by.pair.Sign([]byte(text))
	need.OK(t, err)
	return text + "." + base64.RawURLEncoding.EncodeToString(sig)
}
