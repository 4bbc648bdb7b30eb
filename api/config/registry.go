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
	// Auth are the credentials of every request. Defaults to none.
	Auth *Auth `json:"auth,omitempty"`
	// TLS is for https URLs; at least one member must be set.
	TLS *TLS `json:"tls,omitempty"`
	// Refresh is how long the latest version of a subject is cached, 1s to 24h. A fixed version is cached for ever. Defaults to 5m.
	Refresh Duration `json:"refresh,omitempty"`
}

// ApplyDefaults sets the fields that are not set to the defaults in their comments.
func (r *SchemaRegistry) ApplyDefaults() {
	setDefault(&r.Refresh, Duration(5*time.Minute))
}

func (r *SchemaRegistry) validate(p *problems) {
	u, err := url.Parse(r.URL)
	good := err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != "" && u.RawQuery == "" && u.Fragment == "" && len(r.URL) <= 2048
	p.when(!good, "message.schemaRegistry.url", "must be an http:// or https:// URL with a host and without a query, such as https://registry.example.com")
	p.when(good && u.User != nil, "message.schemaRegistry.url", "must not hold a user or a password; put them into files and name those in auth")
	p.duration("message.schemaRegistry.refresh", r.Refresh, time.Second, 24*time.Hour)
	r.Auth.validate(p, "message.schemaRegistry.auth", AuthBasic, AuthToken)
	r.TLS.validateHTTPS(p, "message.schemaRegistry.tls", !good || u.Scheme == "https")
}

// Validate is what [Config.Validate] says of this section. It fails as that does.
func (r *SchemaRegistry) Validate() error {
	var p problems
	r.validate(&p)
	return p.join()
}
