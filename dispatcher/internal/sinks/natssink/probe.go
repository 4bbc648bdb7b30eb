package natssink

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/files"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
)

// streamNames is where JetStream says which streams take a subject.
const streamNames = "$JS.API.STREAM.NAMES"

// probeStream queries which streams take the subject. A user who may not query that learns it from a delivery.
func (s *sink) probeStream(ctx, limited context.Context, ses *session) error {
	payload, err := json.Marshal(map[string]string{"subject": s.subject.Only})
	if err != nil {
		return err
	}
	names, err := ses.request(limited, streamNames, payload)
	m := &nats.Msg{Subject: s.subject.Only}
	switch {
	case errors.Is(err, errDenied):
		return s.probeRight(ctx, limited, ses)
	case errors.Is(err, errNoStream):
		return s.outcome(ctx, limited, ses, m, errNoStream)
	case err != nil && ctx.Err() == nil && limited.Err() != nil:
		return dispatcher.Unavailable(reason.With(reason.ConnectionFailed, fmt.Errorf("subject %s at %s: JetStream does not say which stream takes it: %w; bring most of the servers back",
			s.subject.Only, s.At, reason.TimedOut("no response in time"))))
	case err != nil:
		return s.Unreachable(ctx, err)
	}
	var response struct {
		Streams []string     `json:"streams"`
		Error   *streamError `json:"error"`
	}
	switch err := json.Unmarshal(names, &response); {
	case err != nil:
		return s.outcome(ctx, limited, ses, m, errNoAck)
	case response.Error != nil:
		return dispatcher.Unavailable(s.outcome(ctx, limited, ses, m, response.Error))
	case len(response.Streams) == 0:
		return s.outcome(ctx, limited, ses, m, errNoStream)
	case s.stream != "" && !slices.Contains(response.Streams, s.stream):
		return s.outcome(ctx, limited, ses, m, &streamError{Code: otherStream, Description: "expected stream does not match"})
	}
	return s.probeRight(ctx, limited, ses)
}

// userInfo is where a server says what the user of a connection may do, from version 2.10 on.
const userInfo = "$SYS.REQ.USER.INFO"

// probeRight checks whether the user may publish to the subject. One who may not query that, as one who may publish
// to few subjects, learns it from a delivery.
func (s *sink) probeRight(ctx, limited context.Context, ses *session) error {
	var response struct {
		Data struct {
			Permissions struct {
				Publish struct{ Allow, Deny []string }
			}
		}
	}
	if text, err := ses.request(limited, userInfo, nil); err == nil {
		_ = json.Unmarshal(text, &response) // of what is not a response, nothing is known
	}
	may := response.Data.Permissions.Publish
	covers := func(pattern string) bool { return covers(pattern, s.subject.Only) }
	if len(may.Allow) > 0 && !slices.ContainsFunc(may.Allow, covers) || slices.ContainsFunc(may.Deny, covers) {
		return s.outcome(ctx, limited, ses, &nats.Msg{Subject: s.subject.Only}, errDenied)
	}
	return nil
}

// covers reports whether a subject with wildcards covers one without.
func covers(pattern, subject string) bool {
	want, have := strings.Split(pattern, "."), strings.Split(subject, ".")
	for i, token := range want {
		switch {
		case i >= len(have):
			return false
		case token == ">":
			return true
		case token != "*" && token != have[i]:
			return false
		}
	}
	return len(want) == len(have)
}

// Limit is the server's max_payload.
func (s *sink) Limit(ctx context.Context) (bytes int, setting string) {
	s.mu.Lock()
	ses := s.open()
	s.mu.Unlock()
	defer ses.retire()
	if ses.wait(ctx) != nil {
		return 0, ""
	}
	return int(ses.conn.MaxPayload()), "the server's max_payload"
}

// request returns the response to a request. That the user may not send it is errDenied, which comes before the response to
// a flush; otherwise a response comes, or the server's status that there is no responder, which is errNoStream.
func (ses *session) request(ctx context.Context, subject string, payload []byte) ([]byte, error) {
	inbox := ses.conn.NewInbox()
	sub, err := ses.conn.SubscribeSync(inbox)
	if err == nil {
		err = ses.conn.PublishRequest(subject, inbox, payload)
	}
	if err == nil {
		err = ses.conn.FlushWithContext(ctx)
	}
	if denied := ses.conn.LastError(); err == nil && isDenied(denied, subject) {
		err = errDenied
	}
	if err != nil {
		return nil, err
	}
	response, err := sub.NextMsgWithContext(ctx)
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return nil, errNoStream
	case err != nil:
		return nil, err
	}
	return response.Data, nil
}

// options of one connection, with what the files hold now.
func options(cfg spec.NATSSink) (nats.Options, error) {
	o := nats.GetDefaultOptions()
	o.Servers = cfg.Servers
	o.Name = "outbox-dispatcher"
	// A connection that breaks is the end of its session: see session.
	o.AllowReconnect = false
	o.IgnoreDiscoveredServers = true
	o.Timeout = perServer(cfg)
	o.SkipHostLookup = true // the dialer does it, and can be interrupted
	o.PingInterval = 20 * time.Second
	o.FlusherTimeout = 0 // a delivery's timeout ends what hangs
	if cfg.TLS != nil {
		tls, err := files.TLS(cfg.TLS)
		if err != nil {
			return o, reason.With(reason.CertificateInvalid, err)
		}
		o.Secure, o.TLSConfig = true, tls
	}
	if cfg.Auth == nil {
		return o, nil
	}
	if err := login(&o, cfg.Auth); err != nil {
		return o, reason.With(reason.AuthenticationFailed, err)
	}
	return o, nil
}

// perServer leaves time for the other servers when one is silent.
func perServer(cfg spec.NATSSink) time.Duration {
	all := min(cfg.Timeout.D(), connectTimeout)
	return max(all/time.Duration(len(cfg.Servers)), min(all, 2*time.Second))
}

func login(o *nats.Options, auth *spec.Auth) error {
	const field = "auth.secretRef"
	user, secret, err := files.Login("auth", auth)
	if err != nil {
		return err
	}
	switch auth.Type {
	case spec.AuthCredentials:
		jwt, err := nkeys.ParseDecoratedJWT([]byte(secret))
		if err != nil {
			return unusable(field, auth.SecretFile, "no JWT", "a .creds file, as nsc generate creds writes it")
		}
		sign, _, err := keyPair(field, auth.SecretFile, []byte(secret), "a .creds file, as nsc generate creds writes it")
		o.UserJWT, o.SignatureCB = func() (string, error) { return jwt, nil }, sign
		return err
	case spec.AuthNKey:
		o.SignatureCB, o.Nkey, err = keyPair(field, auth.SecretFile, []byte(secret), "a user's seed, which starts with SU")
		return err
	case spec.AuthToken:
		o.Token = secret
	default:
		o.User, o.Password = user, secret
	}
	return nil
}

// keyPair returns what signs with the seed in content, and the seed's public key.
func keyPair(field, path string, content []byte, want string) (nats.SignatureHandler, string, error) {
	user, err := nkeys.ParseDecoratedUserNKey(content)
	if err != nil {
		return nil, "", unusable(field, path, "no seed of a user", want)
	}
	public, err := user.PublicKey()
	if err != nil {
		return nil, "", unusable(field, path, "no seed of a user", want)
	}
	return user.Sign, public, nil
}

// unusable does not quote what the library says, which may quote the file.
func unusable(field, path, has, want string) error {
	return fmt.Errorf("%s: %s holds %s; write %s into it", field, path, has, want)
}

var errNoInbox = errors.New("the user may not subscribe to the subjects that confirmations come on")
