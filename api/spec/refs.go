package spec

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// files makes settings of the members of a spec, and collects the keys of Secrets and ConfigMaps that they name.
type files struct {
	// file says where a key is.
	file func(Ref) string
	refs []Ref
	err  error
}

// reference names a Secret or a ConfigMap, and a key in it.
type reference struct {
	Name string `json:"name"`
	Key  string `json:"key"`
}

// login is a login of a sink, as an object has it.
type login struct {
	Type        AuthType   `json:"type"`
	Username    string     `json:"username"`
	UsernameKey string     `json:"usernameKey"`
	SecretRef   *reference `json:"secretRef"`
}

// certificates are the certificates of connections, as an object has them.
type certificates struct {
	Mode                string     `json:"mode"` // of a database
	CASecretRef         *reference `json:"caSecretRef"`
	CAConfigMapRef      *reference `json:"caConfigMapRef"`
	ClientCertSecretRef *reference `json:"clientCertSecretRef"`
	ClientKeySecretRef  *reference `json:"clientKeySecretRef"`
	ServerName          string     `json:"serverName"`
}

// as reads a value of JSON into a type.
func as[T any](f *files, v any) (to T) {
	if err := convert(v, &to); err != nil && f.err == nil {
		f.err = err
	}
	return to
}

// member sets what the settings have for a member of the spec, which field is the path of. They have the same member,
// except for these: a reference to a Secret or ConfigMap becomes the path of its file, headers become a map, and sets
// are sorted, because their order has no meaning.
func (f *files) member(settings map[string]any, field, name string, v any) {
	switch name {
	case "auth":
		settings[name] = f.auth(field, as[login](f, v))
	case "tls":
		settings[name] = f.tls(field, as[certificates](f, v))
	case "signingSecretRef":
		settings["signingSecretFile"] = f.secret(field, as[reference](f, v), "secret")
	case "secretRef":
		settings["dsnFile"] = f.secret(field, as[reference](f, v), "dsn")
	case "configMapRef":
		settings["file"] = f.configMap(field, as[reference](f, v), "schema.json")
	case "headers":
		headers := map[string]string{}
		for _, h := range as[[]struct{ Name, Value, Expression string }](f, v) {
			headers[h.Name] = h.Value + h.Expression
		}
		settings[name] = headers
	default:
		settings[name] = f.value(field, v)
	}
}

// inOrder are the lists whose order has a meaning.
var inOrder = []string{"spec.sink.rabbitmq.addresses"}

// value makes settings of an object or a list, each member by member.
func (f *files) value(field string, v any) any {
	switch v := v.(type) {
	case map[string]any:
		settings := map[string]any{}
		for _, name := range slices.Sorted(maps.Keys(v)) {
			f.member(settings, field+"."+name, name, v[name])
		}
		return settings
	case []any:
		for i := range v {
			v[i] = f.value(fmt.Sprintf("%s[%d]", field, i), v[i])
		}
		if len(v) == 0 || slices.Contains(inOrder, field) {
			return v
		}
		if _, ok := v[0].(string); ok {
			slices.SortFunc(v, func(a, b any) int { return cmp.Compare(a.(string), b.(string)) })
		}
	}
	return v
}

func (f *files) add(ref Ref) string {
	f.refs = append(f.refs, ref)
	return f.file(ref)
}

// secret is the file of the key of a Secret that ref names, else of the one that is named by default. field is the field that
// names it.
func (f *files) secret(field string, ref reference, key string) string {
	return f.add(Ref{Secret: ref.Name, Key: cmp.Or(ref.Key, key), Field: field})
}

// configMap is the file of the key of a ConfigMap, likewise.
func (f *files) configMap(field string, ref reference, key string) string {
	return f.add(Ref{ConfigMap: ref.Name, Key: cmp.Or(ref.Key, key), Field: field})
}

// secretKeys are the keys of an auth that names none; password is that of the other types.
var secretKeys = map[AuthType]string{
	AuthToken: "token", AuthOAuthBearer: "token", AuthNKey: "nkey", AuthCredentials: "credentials",
}

// userTypes are the types of an auth with the name of a user.
var userTypes = []AuthType{AuthBasic, AuthPlain, AuthScramSHA256, AuthScramSHA512}

func (f *files) auth(field string, a login) Auth {
	c := Auth{Type: a.Type, Username: a.Username}
	if a.SecretRef == nil {
		return c
	}
	if a.Username == "" && slices.Contains(userTypes, a.Type) {
		c.UsernameFile = f.secret(field+".secretRef", reference{a.SecretRef.Name, a.UsernameKey}, "username")
	}
	c.SecretFile = f.secret(field+".secretRef", *a.SecretRef, cmp.Or(secretKeys[a.Type], "password"))
	return c
}

func (f *files) tls(field string, t certificates) TLS {
	c := TLS{ServerName: t.ServerName}
	if ref := t.CASecretRef; ref != nil {
		c.CAFile = f.secret(field+".caSecretRef", *ref, "ca.crt")
	} else if ref := t.CAConfigMapRef; ref != nil {
		c.CAFile = f.configMap(field+".caConfigMapRef", *ref, "ca.crt")
	}
	if cert, key := t.ClientCertSecretRef, t.ClientKeySecretRef; cert != nil {
		c.ClientCertFile = f.secret(field+".clientCertSecretRef", *cert, "tls.crt")
		if key != nil {
			c.ClientKeyFile = f.secret(field+".clientKeySecretRef", *key, "tls.key")
		} else {
			c.ClientKeyFile = f.secret(field+".clientCertSecretRef", reference{Name: cert.Name}, "tls.key")
		}
	}
	return c
}
