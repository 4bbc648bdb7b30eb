package database

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// The words for what keeps a dispatcher from its database. They are the reasons of /status and of
// the SourceReachable condition.
const (
	// AuthenticationFailed: the server does not accept the login, or its files cannot be read.
	AuthenticationFailed = "AuthenticationFailed"
	// PermissionDenied: the login lacks a right.
	PermissionDenied = "PermissionDenied"
	// DatabaseNotFound: the server has no database of that name.
	DatabaseNotFound = "DatabaseNotFound"
	// CertificateInvalid: the server's certificate is not trusted, or caFile is not usable.
	CertificateInvalid = "CertificateInvalid"
	// TooFewConnections: the server responds, and allows the login, or all, no more connections.
	TooFewConnections = "TooFewConnections"
	// ConnectionFailed: everything else, such as no server, no response, or one that shuts down.
	ConnectionFailed = "ConnectionFailed"
)

// readOnly is the SQLSTATE of a server, or a transaction, that only reads.
const readOnly = "25006"

// Classify says in one word and in one sentence, with the remedy, why err happened.
func Classify(err error) (reason, message string) {
	var (
		known   *problem
		connect *pgconn.ConnectError
	)
	switch {
	case errors.As(err, &known):
		return known.reason, sentence(known.Error())
	case errors.As(err, &connect):
		return classifyConnect(connect)
	}
	v := classify(err)
	return v.reason, sentence(fmt.Sprintf("the database: %s; %s", v.cause, v.remedy))
}

// verdict is why one try failed, and what to do.
type verdict struct{ reason, cause, remedy string }

func classify(err error) verdict {
	var pg *pgconn.PgError
	switch {
	case errors.Is(err, pgconn.ErrReadOnlyConnection):
		return verdict{ConnectionFailed, "this server only reads", readOnlyRemedy}
	case errors.As(err, &pg):
		reason, remedy := classifyCode(pg.Code)
		return verdict{reason, pg.Message, remedy}
	case errors.As(err, new(x509.UnknownAuthorityError)):
		return verdict{CertificateInvalid, innermost(err).Error(),
			"set the database's tls.caSecretRef or tls.caConfigMapRef to the certificate of the server's authority: none that is there (of the system, where neither is set) has signed the server's"}
	case isCertificate(err):
		return verdict{CertificateInvalid, innermost(err).Error(), "connect by a name that the server's certificate has, or give the server a valid one"}
	case isRefusedCertificate(err):
		return verdict{CertificateInvalid, innermost(err).Error(),
			"the server does not accept the client's certificate: set the database's tls.clientCertSecretRef to one of an authority that it trusts"}
	case strings.Contains(err.Error(), "server refused TLS connection"): // pgx has no type for it
		return verdict{ConnectionFailed, "the server does not offer TLS", "turn it on there, or set the database's tls.mode to Disable"}
	case errors.Is(err, context.DeadlineExceeded):
		return verdict{ConnectionFailed, "no response in time", "check host, port and network policies, and the server's load"}
	}
	return verdict{ConnectionFailed, innermost(err).Error(), "check that the server runs, host and port, and network policies"}
}

// classifyConnect reports each server that was tried, and the remedy of the most specific failure:
// what a person must correct comes before what may pass.
func classifyConnect(err *pgconn.ConnectError) (reason, message string) {
	c := err.Config
	addresses := []string{net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port)))}
	for _, f := range c.Fallbacks {
		if address := net.JoinHostPort(f.Host, strconv.Itoa(int(f.Port))); !slices.Contains(addresses, address) {
			addresses = append(addresses, address)
		}
	}
	var (
		worst  verdict
		causes []string // each once
		failed []string // with the server's address
	)
	for _, try := range tries(err) {
		v := classify(try.err)
		if !slices.Contains(causes, v.cause) {
			causes = append(causes, v.cause)
		}
		failed = append(failed, strings.TrimPrefix(try.address+": "+v.cause, ": "))
		if rank(v) >= rank(worst) {
			worst = v
		}
	}
	if len(causes) > 1 {
		causes = failed
	}
	return worst.reason, sentence(fmt.Sprintf("database %q at %s as user %q: %s; %s",
		c.Database, strings.Join(addresses, ", "), c.User, strings.Join(causes, ", "), worst.remedy))
}

func rank(v verdict) int {
	switch {
	case v.reason == "":
		return 0
	case v.reason != ConnectionFailed:
		return 3
	case v.remedy == readOnlyRemedy:
		return 2
	default:
		return 1
	}
}

// try is a server that was tried, and the last failure there: with sslmode=prefer there are two.
type try struct {
	address string // "" when the name has none
	err     error
}

func tries(err *pgconn.ConnectError) (all []try) {
	joined, ok := err.Unwrap().(interface{ Unwrap() []error })
	if !ok {
		return []try{{"", err.Unwrap()}}
	}
	for _, e := range joined.Unwrap() {
		address, _, _ := strings.Cut(e.Error(), " (") // pgx offers nothing else
		if _, _, err := net.SplitHostPort(address); err != nil {
			address = ""
		}
		if n := len(all); n > 0 && address != "" && all[n-1].address == address {
			all = all[:n-1]
		}
		all = append(all, try{address, e})
	}
	return all
}

const readOnlyRemedy = "connect to the primary: name it, or all servers with commas, of which the one that takes writes is used; if none does, promote one"

// classifyCode maps a SQLSTATE.
func classifyCode(code string) (reason, remedy string) {
	switch code {
	case "28P01", "28000":
		return AuthenticationFailed, "correct the user and the password, or the server's pg_hba.conf"
	case "3D000":
		return DatabaseNotFound, "create the database, or correct its name"
	case "42501":
		return PermissionDenied, "have the owner run what `dispatcher migrate grants` prints"
	case readOnly:
		return ConnectionFailed, readOnlyRemedy
	case "53300":
		return TooFewConnections, "raise the login's connection limit to 4 at least for each process (alter role), or the server's max_connections, or use a connection pooler"
	case "53100":
		return ConnectionFailed, "free space on the server's disk, or enlarge it"
	case "57014":
		return ConnectionFailed, "see what the statement waits for (pg_stat_activity, pg_locks); if nothing, raise the login's statement_timeout"
	case "55P03":
		return ConnectionFailed, "let the transaction end that locks the outbox's tables (see pg_locks), or end it"
	case "57P01", "57P02":
		return ConnectionFailed, "the dispatcher connects again; the server's log says why it ended the connection"
	case "57P03":
		return ConnectionFailed, "wait until the server is ready; if it stays like this, name one that takes connections"
	case "08P01": // in the words of PgBouncer, also when the server behind it is unreachable
		return ConnectionFailed, "check the connection pooler, its limits, and that the server behind it runs"
	}
	return ConnectionFailed, "the dispatcher tries again; see the server's log if this stays (SQLSTATE " + code + ")"
}

func isCertificate(err error) bool {
	var (
		verification *tls.CertificateVerificationError
		unknown      x509.UnknownAuthorityError
		invalid      x509.CertificateInvalidError
		host         x509.HostnameError
	)
	return errors.As(err, &verification) || errors.As(err, &unknown) || errors.As(err, &invalid) || errors.As(err, &host)
}

// isRefusedCertificate reports whether err is the server's alert about our certificate, or the lack of one.
// crypto/tls has no exported type for an alert.
func isRefusedCertificate(err error) bool {
	var op *net.OpError
	if !errors.As(err, &op) || op.Op != "remote error" {
		return false
	}
	text := op.Err.Error()
	return strings.Contains(text, "certificate") || strings.Contains(text, "error decrypting message") // a wrong signature
}

// innermost returns the error at the end of the chain: the cause without pgx's words around it.
func innermost(err error) error {
	for {
		var next error
		switch e := err.(type) { //nolint:errorlint // one link of the chain at a time
		case interface{ Unwrap() error }:
			next = e.Unwrap()
		case interface{ Unwrap() []error }:
			if all := e.Unwrap(); len(all) > 0 {
				next = all[len(all)-1]
			}
		}
		if next == nil {
			return err
		}
		err = next
	}
}

// sentence makes one bounded line.
func sentence(text string) string {
	const limit = 500
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > limit {
		text = strings.ToValidUTF8(text[:limit], "") + "…"
	}
	return text
}
