package natssink

import (
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/files"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
)

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
	const field = "auth.secretFile"
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
