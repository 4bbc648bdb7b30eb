package config

import (
	"net/url"
	"time"
)

// SchemaRegistry is where schemas are read from: Confluent's Schema Registry, or what speaks its API.
// Nothing is ever registered there.
type SchemaRegistry struct {
	// URL is http or https, without user and password. Required.
	URL string `json:"url"`
	// Auth are credentials. Exactly one member must be set.
	Auth *HTTPAuth `json:"auth,omitempty"`
	// TLS is for https URLs; at least one member must be set.
	TLS *TLS `json:"tls,omitempty"`
	// Refresh is how long the latest version of a subject holds until it is asked for again, 1s to 24h.
	// A fixed version holds for ever. Defaults to 5m.
	Refresh Duration `json:"refresh,omitempty"`
}

// ApplyDefaults sets the fields that are not set to the defaults in their comments.
func (r *SchemaRegistry) ApplyDefaults() {
	setDefault(&r.Refresh, Duration(5*time.Minute))
}

func (r *SchemaRegistry) validate(p *problems) {
	u, err := url.Parse(r.URL)
	good := err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != "" && u.RawQuery == "" && u.Fragment == "" && len(r.URL) <= 2048
	p.when(!good, "schemaRegistry.url", "must be an http:// or https:// URL with a host and without a query, such as https://registry.example.com")
	p.when(good && u.User != nil, "schemaRegistry.url", "must not hold a user or a password; put them into files and name those in auth")
	p.duration("schemaRegistry.refresh", r.Refresh, time.Second, 24*time.Hour)
	if r.Auth != nil {
		p.exactlyOne("schemaRegistry.auth", map[string]bool{"bearerTokenFile": r.Auth.BearerTokenFile != "", "basic": r.Auth.Basic != nil})
		if r.Auth.Basic != nil {
			p.required("schemaRegistry.auth.basic.usernameFile", r.Auth.Basic.UsernameFile)
			p.required("schemaRegistry.auth.basic.passwordFile", r.Auth.Basic.PasswordFile)
		}
	}
	if r.TLS != nil {
		p.when(*r.TLS == TLS{}, "schemaRegistry.tls", "is empty; set caFile, certFile and keyFile, or serverName, or remove it")
		p.when((r.TLS.CertFile == "") != (r.TLS.KeyFile == ""), "schemaRegistry.tls", "has only one of certFile and keyFile; set both or neither")
		p.when(good && u.Scheme != "https", "schemaRegistry.tls", "needs an https:// url; change url, or remove tls")
	}
}

// Validate is what [Config.Validate] says of this section.
func (r *SchemaRegistry) Validate() error {
	var p problems
	r.validate(&p)
	return p.join()
}
