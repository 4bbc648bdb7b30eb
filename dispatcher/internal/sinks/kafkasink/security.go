package kafkasink

import (
	"context"
	"errors"
	"net"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/aws"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/files"
)

type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// login returns the option for cfg. kgo calls the mechanism's function for each connection, and when
// a broker requests the credentials again.
func login(cfg *spec.Auth) []kgo.Opt {
	if cfg == nil {
		return nil
	}
	var m sasl.Mechanism
	switch cfg.Type {
	case spec.AuthPlain:
		m = plain.Plain(func(context.Context) (auth plain.Auth, err error) {
			auth.User, auth.Pass, err = files.Login("auth", cfg)
			return auth, err
		})
	case spec.AuthScramSHA256, spec.AuthScramSHA512:
		user := func(context.Context) (auth scram.Auth, err error) {
			auth.User, auth.Pass, err = files.Login("auth", cfg)
			return auth, err
		}
		m = scram.Sha256(user)
		if cfg.Type == spec.AuthScramSHA512 {
			m = scram.Sha512(user)
		}
	case spec.AuthOAuthBearer:
		m = oauth.Oauth(func(context.Context) (auth oauth.Auth, err error) {
			auth.Token, err = files.Credential("auth.secretRef", cfg.SecretFile)
			return auth, err
		})
	case spec.AuthAWSMSKIAM:
		m = aws.ManagedStreamingIAM(new(awsLogin).auth)
	}
	return []kgo.Opt{kgo.SASL(mechanism{m})}
}

// errLogin stands for what a mechanism says of a broker's response, which it may quote.
var errLogin = errors.New("the broker refuses the login")

// mechanism distinguishes a login that failed from a connection that failed.
type mechanism struct{ sasl.Mechanism }

func (m mechanism) Authenticate(ctx context.Context, host string) (sasl.Session, []byte, error) {
	ses, first, err := m.Mechanism.Authenticate(ctx, host)
	return exchange{ses}, first, err
}

type exchange struct{ sasl.Session }

func (e exchange) Challenge(response []byte) (done bool, next []byte, err error) {
	if done, next, err = e.Session.Challenge(response); err != nil {
		err = errLogin
	}
	return done, next, err
}
