package desired

import (
	"slices"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/dispatcher/config"
)

// Paths of the schema registry's keys.
const (
	pathRegistryBearer     = "registry/bearer-token"
	pathRegistryUsername   = "registry/username"
	pathRegistryPassword   = "registry/password"
	pathRegistryCA         = "registry/ca.crt"
	pathRegistryClientCert = "registry/tls.crt"
	pathRegistryClientKey  = "registry/tls.key"
)

func schemaRegistry(r *v1alpha1.SchemaRegistry) *config.SchemaRegistry {
	if r == nil {
		return nil
	}
	c := &config.SchemaRegistry{URL: r.URL, Refresh: config.Duration(r.Refresh.Duration)}
	if auth := r.Auth; auth != nil {
		c.Auth = &config.HTTPAuth{}
		if auth.Bearer != nil {
			c.Auth.BearerTokenFile = Ref{Path: pathRegistryBearer}.File()
		}
		if auth.Basic != nil {
			c.Auth.Basic = &config.BasicAuth{UsernameFile: Ref{Path: pathRegistryUsername}.File(), PasswordFile: Ref{Path: pathRegistryPassword}.File()}
		}
	}
	if tls := r.TLS; tls != nil {
		c.TLS = &config.TLS{ServerName: tls.ServerName}
		if tls.CA != nil {
			c.TLS.CAFile = Ref{Path: pathRegistryCA}.File()
		}
		if tls.ClientCertificate != nil {
			c.TLS.CertFile, c.TLS.KeyFile = Ref{Path: pathRegistryClientCert}.File(), Ref{Path: pathRegistryClientKey}.File()
		}
	}
	return c
}

// registryRefs are the keys of Secrets that the schema registry names.
func registryRefs(r *v1alpha1.SchemaRegistry) (refs []Ref) {
	if r == nil {
		return nil
	}
	if auth := r.Auth; auth != nil {
		refs = slices.Concat(refs, keyRefs("spec.schemaRegistry.auth.bearer", auth.Bearer, pathRegistryBearer))
		if auth.Basic != nil {
			const field = "spec.schemaRegistry.auth.basic"
			refs = append(refs, Ref{auth.Basic.Name, "username", pathRegistryUsername, field}, Ref{auth.Basic.Name, "password", pathRegistryPassword, field})
		}
	}
	if tls := r.TLS; tls != nil {
		refs = slices.Concat(refs, keyRefs("spec.schemaRegistry.tls.ca", tls.CA, pathRegistryCA))
		if own := tls.ClientCertificate; own != nil {
			const field = "spec.schemaRegistry.tls.clientCertificate"
			refs = append(refs, Ref{own.Name, "tls.crt", pathRegistryClientCert, field}, Ref{own.Name, "tls.key", pathRegistryClientKey, field})
		}
	}
	return refs
}
