package desired

import (
	"cmp"
	"path"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

// mounts writes the parts of the file that name mounted keys, and keeps the keys: what the file names and
// what is mounted are told in one place.
type mounts struct {
	// dir is where the keys are, below secretsDir.
	dir  string
	refs []Ref
}

// key mounts one key of a Secret and returns its file. field is the field that names it.
func (m *mounts) key(field, secret, key, file string) string {
	return m.add(Ref{Secret: secret, Key: key, Path: path.Join(m.dir, file), Field: field})
}

func (m *mounts) add(ref Ref) string {
	m.refs = append(m.refs, ref)
	return ref.File()
}

// secretKey is key for what names both; "" when nothing does.
func (m *mounts) secretKey(field string, k *v1alpha1.SecretKey, file string) string {
	if k == nil {
		return ""
	}
	return m.key(field, k.Name, k.Key, file)
}

func (m *mounts) basic(field string, b *v1alpha1.BasicAuth) *config.BasicAuth {
	if b == nil {
		return nil
	}
	c := &config.BasicAuth{Username: b.Username}
	if b.Username == "" {
		c.UsernameFile = m.key(field, b.Name, cmp.Or(b.UsernameKey, "username"), "username")
	}
	c.PasswordFile = m.key(field, b.Name, cmp.Or(b.PasswordKey, "password"), "password")
	return c
}

func (m *mounts) httpAuth(field string, a *v1alpha1.HTTPAuth) *config.HTTPAuth {
	if a == nil {
		return nil
	}
	return &config.HTTPAuth{Basic: m.basic(field+".basic", a.Basic), TokenFile: m.secretKey(field+".token", a.Token, "token")}
}

func (m *mounts) tls(field string, t *v1alpha1.TLS) *config.TLS {
	if t == nil {
		return nil
	}
	c := &config.TLS{ServerName: t.ServerName, CAFile: m.ca(field+".ca", t.CA)}
	c.ClientCertFile, c.ClientKeyFile = m.clientCertificate(field+".clientCertificate", t.ClientCertificate)
	return c
}

func (m *mounts) ca(field string, ca *v1alpha1.CA) string {
	ref := Ref{Path: path.Join(m.dir, "ca.crt")}
	switch {
	case ca == nil || ca.Secret == nil && ca.ConfigMap == nil:
		return ""
	case ca.Secret != nil:
		ref.Secret, ref.Key, ref.Field = ca.Secret.Name, cmp.Or(ca.Secret.Key, "ca.crt"), field+".secret"
	default:
		ref.ConfigMap, ref.Key, ref.Field = ca.ConfigMap.Name, cmp.Or(ca.ConfigMap.Key, "ca.crt"), field+".configMap"
	}
	return m.add(ref)
}

func (m *mounts) clientCertificate(field string, c *v1alpha1.ClientCertificate) (certFile, keyFile string) {
	if c == nil {
		return "", ""
	}
	return m.key(field, c.Name, cmp.Or(c.CertKey, "tls.crt"), "tls.crt"), m.key(field, c.Name, cmp.Or(c.KeyKey, "tls.key"), "tls.key")
}
