package redissink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
)

// refused is the outcome of an entry that was sent and not confirmed.
func (s *sink) refused(ctx context.Context, en *entry, err error) error {
	var reply redis.Error
	if errors.As(err, &reply) {
		return reason.Coded(prefix(reply), s.explain(en, reply))
	}
	if ctx.Err() != nil {
		return s.Interrupted(ctx)
	}
	return reason.With(reason.ConnectionFailed, fmt.Errorf(
		"stream %s at %s: no confirmation: %w; check that the server runs and responds in time, or raise timeout. The event may have been added, so this counts as an attempt", en.stream, en.address, cause(err, s.cfg.Timeout.D())))
}

// explain is what Redis says of an entry that it has not added.
func (s *sink) explain(en *entry, reply redis.Error) error {
	say := func(remedy string, args ...any) error {
		return fmt.Errorf("stream %s at %s: %w; %s", en.stream, en.address, quote(reply), fmt.Sprintf(remedy, args...))
	}
	unreachable := func(remedy string) error {
		return dispatcher.Unavailable(reason.With(reason.ConnectionFailed, say("%s", remedy)))
	}
	fault := func(remedy string) error { return dispatcher.DestinationFault(say("%s", remedy)) }
	word, _, _ := strings.Cut(reply.Error(), " ")
	switch word {
	case "LOADING":
		return unreachable("wait until the server has read its data")
	case "READONLY":
		return unreachable("set addresses to the master: this server is its replica")
	case "MASTERDOWN":
		return unreachable("bring the replica's master back, or promote the replica")
	case "CLUSTERDOWN":
		return unreachable("bring the cluster's missing masters back, or promote their replicas")
	case "TRYAGAIN", "BUSY":
		return unreachable("wait until the server has done what it is busy with: a script, or the move of a slot")
	case "NOAUTH":
		return dispatcher.Unavailable(reason.With(reason.AuthenticationFailed, say(noLogin)))
	case "NOPERM":
		return reason.NoDestination(en.stream == s.stream.Only, reason.With(reason.AuthenticationFailed, say("allow it, as with ACL SETUSER <user> +xadd +ping +wait +select +cluster|slots ~%s", en.stream)))
	case "WRONGTYPE":
		return s.noStream(en, quote(reply))
	case "OOM":
		return fault("raise maxmemory, set maxLen, or have consumers and XTRIM remove what is read")
	case "MISCONF":
		return fault("free space on the server's disk: it cannot save its data, and its log says why")
	case "NOREPLICAS":
		return fault("bring replicas back, or lower the server's min-replicas-to-write")
	case "MOVED", "ASK":
		if s.cluster == nil {
			return fault("the server is a node of a cluster: set topology to Cluster")
		}
		return fault("the cluster's nodes do not agree on who has the stream; check them with redis-cli --cluster check")
	}
	if isTooLarge(reply) {
		return reason.Coded(reason.TooLarge, dispatcher.Permanent(dispatcher.ReasonPermanentFailure, fmt.Errorf(
			"stream %s at %s: the event is too large: about %d bytes; raise the server's proto-max-bulk-len, or make smaller events", en.stream, en.address, en.size())))
	}
	return say("the server's log says more")
}

// prefix is the first word of a reply, which Redis writes in capitals, or ERR.
func prefix(reply redis.Error) string {
	word, _, _ := strings.Cut(reply.Error(), " ")
	if len(word) > 32 || strings.ContainsFunc(word, func(r rune) bool { return r < 'A' || r > 'Z' }) {
		return "ERR"
	}
	return word
}

// noStream is for a key that holds something else.
func (s *sink) noStream(en *entry, err error) error {
	return reason.NoDestination(en.stream == s.stream.Only, reason.With(reason.Refusing, fmt.Errorf(
		"stream %s at %s: %w; set stream to another key, or have the key removed that is not a stream", en.stream, en.address, err)))
}

// quote is a reply without what it quotes of the command, which may be the payload, and without a full
// stop: a remedy follows.
func quote(reply redis.Error) error {
	text, _, _ := strings.Cut(reply.Error(), ", with args")
	if len(text) > 300 {
		text = strings.ToValidUTF8(text[:300], "")
	}
	if text = strings.TrimSuffix(text, "."); text == reply.Error() {
		return reply
	}
	return errors.New(text)
}

// size is about what the entry takes.
func (en *entry) size() (n int64) {
	for _, arg := range en.args {
		n += length(arg)
	}
	return n
}

// longest is the length of its longest value, which proto-max-bulk-len is about.
func (en *entry) longest() (n int64) {
	for _, arg := range en.args {
		n = max(n, length(arg))
	}
	return n
}

func length(arg any) int64 {
	switch v := arg.(type) {
	case string:
		return int64(len(v))
	case []byte:
		return int64(len(v))
	}
	return 0
}

// unreachable is a failure before anything of a delivery was sent, or one of a probe.
func (s *sink) unreachable(ctx context.Context, address string, err error) error {
	if ctx.Err() != nil {
		return s.Interrupted(ctx)
	}
	if s.cluster != nil {
		s.cluster.ReloadState(ctx) // in the background: the node may have lost its slots
	}
	server := s.Server
	server.At = address
	return server.Unreachable(ctx, err)
}

// peer is who connections are made to.
var peer = reason.Peer{Name: "the server", Hosts: "addresses", TLS: "tls", Plain: "remove tls"}

// explainLogin is [base.Server].Explain.
func explainLogin(err error) error {
	var reply redis.Error
	switch {
	case errors.As(err, &reply):
		word, remedy := loginFailure(reply)
		err = reason.With(word, fmt.Errorf("%w; %s", quote(reply), remedy))
	case errors.Is(err, errReplica):
		err = reason.With(reason.ConnectionFailed, fmt.Errorf("%w; set addresses to the master, or promote this server", err))
	case errors.Is(err, net.ErrClosed): // by who waited no longer
		err = context.DeadlineExceeded
	}
	return err
}

// loginFailure is the server's reply before it took anything.
func loginFailure(reply redis.Error) (word, remedy string) {
	text := reply.Error()
	switch {
	case strings.HasPrefix(text, "NOAUTH"):
		return reason.AuthenticationFailed, noLogin
	case strings.HasPrefix(text, "NOPERM"):
		return reason.AuthenticationFailed, "allow it, as with ACL SETUSER <user> +xadd +ping +wait +select +cluster|slots"
	case redis.IsAuthError(reply):
		return reason.AuthenticationFailed, "check the user and the password in the Secret of auth"
	case strings.HasPrefix(text, "DENIED"):
		return reason.AuthenticationFailed, "give the server a password, and name it in auth, or turn its protected-mode off"
	case redis.IsMaxClientsError(reply):
		return reason.ConnectionFailed, "raise the server's maxclients"
	case strings.Contains(text, "DB index"):
		return reason.Refusing, "set database to a number that the server has, or raise its databases"
	case strings.Contains(text, "cluster support disabled"):
		return reason.Refusing, "the server is not a cluster: set topology to Standalone"
	case redis.IsLoadingError(reply):
		return reason.ConnectionFailed, "wait until the server has read its data"
	case strings.HasPrefix(text, "MISCONF"):
		return reason.Refusing, "free space on the server's disk: it cannot save its data, and its log says why"
	case redis.IsMasterDownError(reply):
		return reason.ConnectionFailed, "bring the replica's master back, or promote the replica"
	default:
		return reason.Refusing, "the server's log says more"
	}
}

const noLogin = "a login is wanted there: name the Secret that holds it in auth"

// cause is why a reply is missing, without the words for who ended the connection.
func cause(err error, limit time.Duration) error {
	switch {
	case errors.Is(err, net.ErrClosed), reason.IsTimeout(err):
		return reason.TimedOut(fmt.Sprintf("no response within %s", limit))
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("the server closed the connection")
	default:
		return err
	}
}
