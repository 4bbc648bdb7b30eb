package kafkasink

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/linkedin/goavro/v2"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sr"
	"github.com/twmb/franz-go/pkg/sr/srfake"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/servers/kafka"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// token is what the broker takes for OAUTHBEARER: a token without a signature.
func token(user string, until time.Time) string {
	part := func(format string, args ...any) string {
		return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, format, args...))
	}
	return part(`{"alg":"none"}`) + "." + part(`{"sub":%q,"iat":%d,"exp":%d}`, user, until.Add(-2*time.Hour).Unix(), until.Unix()) + "."
}

func passwordLogin(t *testing.T, typ spec.AuthType, user, password string) *spec.Auth {
	return sinktest.Login(t, typ, user, password)
}

func tokenLogin(t *testing.T, token string) *spec.Auth {
	return &spec.Auth{Type: spec.AuthOAuthBearer, SecretFile: sinktest.File(t, "token", token+"\n")}
}

// Each way to be secure, on the real broker, as it should be and as it should not.
//
// CONTRACT: C-32, C-73
func TestSecurityFailuresNameTheRemedy(t *testing.T) {
	topic := newTopic(t, 1)
	trust := certs.Trust(t, certs.CA.PEM)
	for _, test := range []struct {
		name, listener string
		auth           *spec.Auth
		tls            *spec.TLS
		word, text     string // "" means delivered
	}{
		{name: "PLAIN", listener: "SASLTLS", auth: passwordLogin(t, spec.AuthPlain, alice, sinktest.PasswordSecret), tls: trust},
		{name: "SCRAM-SHA-256", listener: "SASL", auth: passwordLogin(t, spec.AuthScramSHA256, alice, sinktest.PasswordSecret)},
		{name: "SCRAM-SHA-512", listener: "SASLTLS", auth: passwordLogin(t, spec.AuthScramSHA512, alice, sinktest.PasswordSecret), tls: trust},
		{name: "a user as it is", listener: "SASL", auth: &spec.Auth{Type: spec.AuthScramSHA512, Username: alice, SecretFile: sinktest.File(t, "password", sinktest.PasswordSecret)}},
		{name: "OAUTHBEARER", listener: "SASLTLS", auth: tokenLogin(t, token(alice, sinktest.InAnHour())), tls: trust},
		{name: "PLAIN, wrong password", listener: "SASL", auth: passwordLogin(t, spec.AuthPlain, alice, sinktest.WrongSecret), word: reason.AuthenticationFailed, text: "; check auth.type, and the user and password"},
		{name: "SCRAM-SHA-256, wrong password", listener: "SASL", auth: passwordLogin(t, spec.AuthScramSHA256, alice, sinktest.WrongSecret), word: reason.AuthenticationFailed, text: "; check auth.type, and the user and password"},
		{name: "SCRAM-SHA-512, unknown user", listener: "SASL", auth: passwordLogin(t, spec.AuthScramSHA512, sinktest.WrongSecret, sinktest.PasswordSecret), word: reason.AuthenticationFailed, text: "; check auth.type, and the user and password"},
		{name: "OAUTHBEARER, expired token", listener: "SASL", auth: tokenLogin(t, token(alice, time.Now().Add(-time.Hour))), word: reason.AuthenticationFailed, text: "; check auth.type, and the user and password or token"},
		{name: "OAUTHBEARER, no token", listener: "SASL", auth: tokenLogin(t, sinktest.WrongSecret), word: reason.AuthenticationFailed, text: "; check auth.type, and the user and password or token"},
		{name: "no login", listener: "SASL", word: reason.ConnectionFailed, text: "may want TLS, in tls, or a login, in auth"},
		{name: "a login that the server does not want", listener: kafka.Plain, auth: passwordLogin(t, spec.AuthPlain, alice, sinktest.PasswordSecret), word: reason.AuthenticationFailed, text: "; no login is wanted there"},
		{name: "mechanism unknown there", listener: "SASLTLS", auth: &spec.Auth{Type: spec.AuthAWSMSKIAM}, tls: trust, word: reason.AuthenticationFailed, text: "; set auth.type to one that is enabled"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE")
			t.Setenv("AWS_SECRET_ACCESS_KEY", sinktest.WrongSecret)
			cfg := plainConfig(t, topic)
			cfg.Brokers = []string{broker(t).Address(test.listener)}
			cfg.Auth, cfg.TLS = test.auth, test.tls
			sinktest.Reaches(t, open(t, cfg), test.word, test.text)
		})
	}
}

// CONTRACT: C-32
func TestTLSFailuresNameTheRemedy(t *testing.T) {
	topic, at := newTopic(t, 1), theBroker.Server.Address
	sinktest.TLS{
		Certificates: certs, Plain: at(kafka.Plain), Good: at("TLS"), Mutual: at("MUTUAL"), ExpiredAt: at("EXPIRED"), ElsewhereAt: at("ELSEWHERE"),
		Open: func(t *testing.T, address string, cfg *spec.TLS) dispatcher.Sink {
			return openTLS(t, topic, address, cfg)
		},
		Renew: "; renew the broker's certificate", Hosts: "; use hosts in brokers, and in the brokers' advertised.listeners, that the certificate names",
		NoTLS: "TLS", TLSWanted: "whether the port wants TLS",
	}.Run(t)
}

func openTLS(t *testing.T, topic, address string, cfg *spec.TLS) dispatcher.Sink {
	return open(t, spec.KafkaSink{Brokers: []string{address}, Topic: topic, Access: spec.Access{TLS: cfg}})
}

func TestFilesAreReadForEachConnection(t *testing.T) {
	topic := newTopic(t, 1)
	sinktest.Rotated(t, certs, func(t *testing.T, passwordFile string) dispatcher.Sink {
		cfg := plainConfig(t, topic)
		cfg.Brokers = []string{broker(t).Address("SASL")}
		cfg.Auth = passwordLogin(t, spec.AuthScramSHA256, alice, "")
		cfg.Auth.SecretFile = passwordFile
		return open(t, cfg)
	}, func(t *testing.T, cfg *spec.TLS) dispatcher.Sink {
		return openTLS(t, topic, broker(t).Address("MUTUAL"), cfg)
	})
}

// withoutAWS leaves nothing of this machine's to find.
func withoutAWS(t *testing.T) {
	for _, name := range []string{
		"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_ROLE_ARN",
		"AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI",
	} {
		t.Setenv(name, "")
	}
	t.Setenv("AWS_CONFIG_FILE", "/does/not/exist")
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", "/does/not/exist")
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
}

// awsMechanism is what a client logs in with.
func awsMechanism(t *testing.T) sasl.Mechanism {
	t.Helper()
	client, err := kgo.NewClient(login(&spec.Auth{Type: spec.AuthAWSMSKIAM})...)
	need.OK(t, err)
	t.Cleanup(client.Close)
	return client.OptValue(kgo.SASL).([]sasl.Mechanism)[0]
}

// logIn returns the key and the session token of the login at a broker of MSK, and the region.
func logIn(t *testing.T, m sasl.Mechanism) string {
	t.Helper()
	_, first, err := m.Authenticate(t.Context(), "b-1.orders.abc123.c2.kafka.eu-central-1.amazonaws.com:9098")
	need.OK(t, err)
	var said map[string]string
	need.OK(t, json.Unmarshal(first, &said))
	scope := strings.Split(said["x-amz-credential"], "/")
	return strings.Join([]string{scope[0], said["x-amz-security-token"], scope[2]}, " ")
}

// A pod's identity, as EKS Pod Identity gives it, is requested at the first login, kept while it is
// valid, and requested again when it is about to expire. A new token of the pod needs no restart.
//
// CONTRACT: C-73
func TestAWSIdentityIsRequestedBeforeItExpires(t *testing.T) {
	withoutAWS(t)
	var lookups atomic.Int32
	podToken := sinktest.File(t, "token", "first")
	agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, lasts := lookups.Add(1), time.Hour
		if n == 1 {
			lasts = time.Minute
		}
		fmt.Fprintf(w, `{"AccessKeyId":"key-%d","SecretAccessKey":%q,"Token":"%s-%d","Expiration":%q}`,
			n, sinktest.PasswordSecret, r.Header.Get("Authorization"), n, time.Now().Add(lasts).UTC().Format(time.RFC3339))
	}))
	t.Cleanup(agent.Close)
	t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", agent.URL)
	t.Setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", podToken)

	m := awsMechanism(t)
	need.Want(t, 0, "%d lookups before a login", lookups.Load())
	for _, want := range []string{"key-1 first-1 eu-central-1", "key-2 second-2 eu-central-1", "key-2 second-2 eu-central-1"} {
		need.Want(t, want, "logs in with %s, want %s", logIn(t, m))
		sinktest.Write(t, podToken, "second")
	}
}

// CONTRACT: C-32, C-73
func TestAWSLoginTakesTheEnvironment(t *testing.T) {
	withoutAWS(t)
	m := awsMechanism(t)
	_, _, err := m.Authenticate(t.Context(), "b-1.example:9098")
	need.That(t, reason.Of(err) == reason.AuthenticationFailed && strings.HasPrefix(err.Error(), "no credentials: ") && strings.Contains(err.Error(), "; give the pods an identity, as by spec.pods.serviceAccount"),
		"without credentials: %v", err)
	t.Setenv("AWS_ACCESS_KEY_ID", "key")
	t.Setenv("AWS_SECRET_ACCESS_KEY", sinktest.PasswordSecret)
	t.Setenv("AWS_SESSION_TOKEN", "session")
	need.Want(t, "key session eu-central-1", "with credentials: logs in with %s", logIn(t, awsMechanism(t)))
}

// Package encoding has the tests of what is encoded how. These are of what becomes of it on the real
// broker, next to a registry that can be broken.
//
// CONTRACT: C-32, C-70, C-72, C-73
func TestEncodedRecordsReachTheBroker(t *testing.T) {
	schemas := srfake.New()
	t.Cleanup(schemas.Close)
	var unreachable atomic.Bool
	schemas.Intercept(func(w http.ResponseWriter, _ *http.Request) bool {
		if unreachable.Load() {
			http.Error(w, "", http.StatusServiceUnavailable)
		}
		return unreachable.Load()
	})
	const schema = `{"type":"record","name":"Card","fields":[{"name":"secret","type":"string"}]}`
	topic := newTopic(t, 1)
	cfg := plainConfig(t, "")
	cfg.Encoding = spec.KafkaAvro
	s, err := build(cfg, &spec.SchemaRegistry{URL: schemas.URL()}, nil)
	need.OK(t, err)
	t.Cleanup(func() { _ = s.Close(t.Context()) })
	event := func(topic, payload string) *dispatcher.Event {
		e := sinktest.NewEvent()
		e.Topic, e.Payload = topic, []byte(payload)
		return e
	}

	unreachable.Store(true)
	good := event(topic, `{"secret":"`+sinktest.PayloadSecret+`"}`)
	sinktest.Want(t, "the registry is unreachable", s.Deliver(t.Context(), []*dispatcher.Event{good})[0], true, reason.Refusing, "schema registry http://")
	sinktest.Want(t, "Probe", s.Probe(t.Context()), true, reason.Refusing, "schema registry http://")
	unreachable.Store(false)
	schemas.SeedSchema(topic+"-value", 1, 77, sr.Schema{Schema: schema})
	// The registry is queried again after a pause.
	for err := s.Probe(t.Context()); err != nil; err = s.Probe(t.Context()) {
		need.Must(t, dispatcher.IsUnavailable(err), "%v", err)
	}

	bad, missing := event(topic, `{"secret":4111, "more":"`+sinktest.PayloadSecret+`"}`), event("no-schema", `{}`)
	errs := s.Deliver(t.Context(), []*dispatcher.Event{bad, good, missing})
	sinktest.Want(t, "a payload that does not fit", errs[0], false, reason.Refusing, "/secret does not fit the Avro type string; correct the row, or register a schema that it fits")
	if why, _ := dispatcher.PermanentReason(errs[0]); why != dispatcher.ReasonSchemaValidationFailed {
		t.Errorf("a payload that does not fit is to be retried: %v", errs[0])
	}
	need.That(t, errs[1] == nil, "an event next to it: %v", errs[1])
	sinktest.Want(t, "a subject that is missing", errs[2], false, reason.Refusing, "subject no-schema-value: it is not registered; register it there")
	if _, dead := dispatcher.PermanentReason(errs[2]); dead {
		t.Errorf("a subject can be registered yet: %v", errs[2])
	}

	records := consume(t, topic)
	need.Must(t, len(records) == 1, "%d records arrived, want 1", len(records))
	headers := headersOf(records[0])
	need.That(t, headers["content-type"] == "application/avro" && headers["ce_id"] == good.ID.String() && string(records[0].Key) == good.Key(),
		"key %s, headers %v", records[0].Key, headers)
	reader, err := goavro.NewCodec(schema)
	need.OK(t, err)
	value := records[0].Value
	need.Must(t, len(value) >= 5 && string(value[:5]) == "\x00\x00\x00\x00\x4d", "the value is %x", value)
	if got, _, err := reader.NativeFromBinary(value[5:]); err != nil || got.(map[string]any)["secret"] != sinktest.PayloadSecret {
		t.Errorf("%x is read as %v, %v", value, got, err)
	}
}

func headersOf(r *kgo.Record) map[string]string {
	headers := map[string]string{}
	for _, h := range r.Headers {
		headers[h.Key] = string(h.Value)
	}
	return headers
}

// The subject that is set is that of all topics, and Protobuf has its own content type.
func TestEncoderTakesTheSubjectThatIsSet(t *testing.T) {
	schemas := srfake.New()
	t.Cleanup(schemas.Close)
	schemas.SeedSchema("cards", 1, 5, sr.Schema{Type: sr.TypeProtobuf, Schema: `syntax = "proto3"; message Card { string secret = 1; }`})
	s, err := build(spec.KafkaSink{Brokers: []string{"127.0.0.1:1"}, Encoding: spec.KafkaProtobuf, Subject: "cards"}, &spec.SchemaRegistry{URL: schemas.URL()}, nil)
	need.OK(t, err)
	r, err := s.record(t.Context(), time.Now(), sinktest.NewEvent())
	if err != nil || headersOf(r)["content-type"] != "application/protobuf" || string(r.Value) != "\x00\x00\x00\x00\x05\x00\x0a\x0c"+sinktest.PayloadSecret {
		t.Errorf("%x, %v, %v", r.Value, headersOf(r), err)
	}
	need.That(t, need.Err(build(spec.KafkaSink{Brokers: []string{"127.0.0.1:1"}, Encoding: spec.KafkaProtobuf}, nil, nil)) != nil, "an encoder without a registry is made")
}
