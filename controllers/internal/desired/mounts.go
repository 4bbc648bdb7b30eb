package desired

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

// mounts translates the parts of a spec into those of the file, and collects the keys of Secrets and ConfigMaps that
// they name.
type mounts struct {
	// dir is where the keys are, below secretsDir.
	dir  string
	refs []Ref
}

// secretKeys are the fields that name one key of a Secret, with the names of the mounted files. The file has the field
// with File at the end.
var secretKeys = map[string]string{
	"token": "token", "password": "password", "nkey": "nkey", "credentials": "nats.creds", "secret": "signing-secrets",
}

// member sets what the file has for a member of the spec, which field is the path of. The file has the same member,
// except for these: a reference to a Secret or ConfigMap becomes the path of its file, headers become a map, and sets
// are sorted, because their order must not roll pods.
func (m *mounts) member(file map[string]any, field, name string, v any) {
	object, isObject := v.(map[string]any)
	switch {
	case isObject && secretKeys[name] != "":
		k := converted[v1alpha1.SecretKey](object)
		file[name+"File"] = m.key(field, k.Name, k.Key, secretKeys[name])
	case name == "basic":
		file[name] = m.basic(field, converted[v1alpha1.BasicAuth](v))
	case name == "ca":
		file["caFile"] = m.ca(field, converted[*v1alpha1.CA](v))
	case name == "clientCertificate":
		file["clientCertFile"], file["clientKeyFile"] = m.clientCertificate(field, converted[*v1alpha1.ClientCertificate](v))
	case name == "configMap":
		file["file"] = schemaFile(field)
	case name == "database" && isObject:
		file[name] = m.database(field, converted[*v1alpha1.OutboxSpec](v))
	case name == "headers":
		headers := map[string]string{}
		for _, h := range converted[[]header](v) {
			headers[h.Name] = h.Value + h.Expression
		}
		file[name] = headers
	default:
		file[name] = m.value(field, v)
	}
}

// header is a v1alpha1.HTTPHeader, which has a value, or a v1alpha1.MessageHeader, which has an expression.
type header struct {
	Name       string `json:"name"`
	Value      string `json:"value"`
	Expression string `json:"expression"`
}

// inOrder are the lists whose order has a meaning.
var inOrder = []string{"spec.sink.rabbitmq.addresses"}

// value translates an object or a list, each member by [mounts.member].
func (m *mounts) value(field string, v any) any {
	switch v := v.(type) {
	case map[string]any:
		file := map[string]any{}
		for _, name := range slices.Sorted(maps.Keys(v)) {
			m.member(file, field+"."+name, name, v[name])
		}
		return file
	case []any:
		for i := range v {
			v[i] = m.value(fmt.Sprintf("%s[%d]", field, i), v[i])
		}
		if _, ok := v[0].(string); ok && !slices.Contains(inOrder, field) {
			slices.SortFunc(v, func(a, b any) int { return cmp.Compare(a.(string), b.(string)) })
		}
	}
	return v
}

// key mounts one key of a Secret and returns its file. field is the field that names it.
func (m *mounts) key(field, secret, key, file string) string {
	return m.add(Ref{Secret: secret, Key: key, Path: path.Join(m.dir, file), Field: field})
}

func (m *mounts) add(ref Ref) string {
	m.refs = append(m.refs, ref)
	return ref.File()
}

func (m *mounts) basic(field string, b v1alpha1.BasicAuth) config.BasicAuth {
	c := config.BasicAuth{Username: b.Username}
	if b.Username == "" {
		c.UsernameFile = m.key(field, b.Name, cmp.Or(b.UsernameKey, "username"), "username")
	}
	c.PasswordFile = m.key(field, b.Name, cmp.Or(b.PasswordKey, "password"), "password")
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
