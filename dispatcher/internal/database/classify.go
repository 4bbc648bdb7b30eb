package database

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
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
	// ConnectionFailed: everything else, such as no server, no answer, or one that shuts down.
	ConnectionFailed = "ConnectionFailed"
)

// Classify says in one word and in one sentence, with the remedy, why err happened.
func Classify(err error) (reason, message string) {
	cause, remedy := "", ""
	var (
		known   *problem
		pg      *pgconn.PgError
		connect *pgconn.ConnectError
	)
	switch {
	case errors.As(err, &known):
		return known.reason, sentence(known.Error())
	case errors.As(err, &pg):
		cause = pg.Message
		reason, remedy = classifyCode(pg.Code)
	case isCertificate(err):
		reason, cause = CertificateInvalid, innermost(err).Error()
		remedy = "set database.tls.ca (in a dispatcher's file: database.caFile) to the certificate of the server's authority, and connect by a name that the server's certificate has"
	case strings.Contains(err.Error(), "server refused TLS connection"): // pgx has no type for it
		reason, cause = ConnectionFailed, "the server does not offer TLS"
		remedy = "turn it on there, or set database.sslMode to disable"
	case errors.Is(err, context.DeadlineExceeded):
		reason, cause = ConnectionFailed, "no answer in time"
		remedy = "check host, port and network policies, and the server's load"
	default:
		reason, cause = ConnectionFailed, innermost(err).Error()
		remedy = "check that the server runs, host and port, and network policies"
	}
	where := "the database"
	if errors.As(err, &connect) {
		c := connect.Config
		where = fmt.Sprintf("database %q at %s as user %q", c.Database, net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port))), c.User)
	}
	return reason, sentence(fmt.Sprintf("%s: %s; %s", where, cause, remedy))
}

// classifyCode maps a SQLSTATE.
func classifyCode(code string) (reason, remedy string) {
	switch code {
	case "28P01", "28000":
		return AuthenticationFailed, "correct the user and the password, or the server's pg_hba.conf"
	case "3D000":
		return DatabaseNotFound, "create the database, or correct its name"
	case "42501":
		return PermissionDenied, "have the owner run what `dispatcher migrate grants` prints"
	case "25006":
		return ConnectionFailed, "connect to the primary: this server only reads"
	case "53300":
		return ConnectionFailed, "raise the server's max_connections, or use a connection pooler"
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
