package desired

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

// mounts translates the parts of a spec into those of the file, and collects the keys of Secrets and ConfigMaps that
// they name.
type mounts struct {
	// dir is where the keys are, below secretsDir.
	dir  string
	refs []Ref
}

// member sets what the file has for a member of the spec, which field is the path of. The file has the same member,
// except for these: a reference to a Secret or ConfigMap becomes the path of its file, headers become a map, and sets
// are sorted, because their order must not roll pods.
func (m *mounts) member(file map[string]any, field, name string, v any) {
	switch name {
	case "auth":
		file[name] = m.auth(field, converted[v1alpha1.Auth](v))
	case "tls":
		file[name] = m.tls(field, converted[v1alpha1.TLS](v))
	case "signingSecretRef":
		file["signingSecretFile"] = m.secret(field, converted[v1alpha1.SecretRef](v), "secret")
	case "secretRef":
		file["dsnFile"] = m.secret(field, converted[v1alpha1.SecretRef](v), "dsn")
	case "configMapRef":
		file["file"] = schemaFile(field)
	case "headers":
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

// secret mounts the key of a Secret that ref names, else the one that is named by default, which is the name of the file
// too.
func (m *mounts) secret(field string, ref v1alpha1.SecretRef, key string) string {
	return m.key(field, ref.Name, cmp.Or(ref.Key, key), key)
}

// secretKeys are the keys of [v1alpha1.Auth] when it names none; password is that of the other types.
var secretKeys = map[v1alpha1.AuthType]string{
	v1alpha1.AuthToken: "token", v1alpha1.AuthOAuthBearer: "token", v1alpha1.AuthNKey: "nkey", v1alpha1.AuthCredentials: "credentials",
}

// userTypes are the types of [v1alpha1.Auth] with the name of a user.
var userTypes = []v1alpha1.AuthType{v1alpha1.AuthBasic, v1alpha1.AuthPlain, v1alpha1.AuthScramSHA256, v1alpha1.AuthScramSHA512}

func (m *mounts) auth(field string, a v1alpha1.Auth) spec.Auth {
	c := spec.Auth{Type: spec.AuthType(a.Type), Username: a.Username}
	if a.SecretRef == nil {
		return c
	}
	if a.Username == "" && slices.Contains(userTypes, a.Type) {
		c.UsernameFile = m.key(field+".secretRef", a.SecretRef.Name, cmp.Or(a.UsernameKey, "username"), "username")
	}
	c.SecretFile = m.secret(field+".secretRef", *a.SecretRef, cmp.Or(secretKeys[a.Type], "password"))
	return c
}

func (m *mounts) tls(field string, t v1alpha1.TLS) spec.TLS {
	c := spec.TLS{ServerName: t.ServerName}
	if ref := t.CASecretRef; ref != nil {
		c.CAFile = m.secret(field+".caSecretRef", *ref, "ca.crt")
	} else if ref := t.CAConfigMapRef; ref != nil {
		c.CAFile = m.add(Ref{ConfigMap: ref.Name, Key: cmp.Or(ref.Key, "ca.crt"), Path: path.Join(m.dir, "ca.crt"), Field: field + ".caConfigMapRef"})
	}
	if cert, key := t.ClientCertSecretRef, t.ClientKeySecretRef; cert != nil {
		c.ClientCertFile = m.secret(field+".clientCertSecretRef", *cert, "tls.crt")
		if key != nil {
			c.ClientKeyFile = m.secret(field+".clientKeySecretRef", *key, "tls.key")
		} else {
			c.ClientKeyFile = m.key(field+".clientCertSecretRef", cert.Name, "tls.key", "tls.key")
		}
	}
	return c
}
