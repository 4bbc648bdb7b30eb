package desired

import (
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/dispatcher/config"
)

// dirInbox is where the login of a sink's database is, beside the paths in refs.go.
const dirInbox = "sink/database"

func postgresSink(s *v1alpha1.PostgresSink) *config.PostgresSink {
	login := database(v1alpha1.Database{TLS: s.Database.TLS}, s.Database.Secret, dirInbox)
	c := &config.PostgresSink{
		Database: config.InboxDatabase{DSNFile: login.DSNFile, Connection: login.Connection, SSLMode: login.SSLMode},
		Table:    s.Table,
		Timeout:  config.Duration(s.Timeout.Duration),
	}
	if login.CAFile != "" {
		c.Database.CAFile = Ref{Path: pathSinkCA}.File()
	}
	return c
}

func postgresRefs(s *v1alpha1.PostgresSink) []Ref {
	refs := loginRefs(dirInbox, "spec.sink.postgres.database.secret", s.Database.Secret)
	if tls := s.Database.TLS; tls != nil {
		refs = append(refs, keyRefs("spec.sink.postgres.database.tls.ca", tls.CA, pathSinkCA)...)
	}
	return refs
}
