package spec

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
)

// files sets the paths of files in specs, and collects the keys of Secrets and ConfigMaps that they name.
type files struct {
	// file says where a key is.
	file func(Ref) string
	refs []Ref
}

func (f *files) add(ref Ref) string {
	f.refs = append(f.refs, ref)
	return f.file(ref)
}

// secret is the file of the key of a Secret that ref names, else of the one that is named by default. field is the field that
// names it. It is empty without a ref.
func (f *files) secret(field string, ref *SecretRef, key string) string {
	if ref == nil {
		return ""
	}
	return f.add(Ref{Secret: ref.Name, Key: cmp.Or(ref.Key, key), Field: field})
}

// configMap is the file of the key of a ConfigMap, likewise.
func (f *files) configMap(field string, ref *ConfigMapRef, key string) string {
	if ref == nil {
		return ""
	}
	return f.add(Ref{ConfigMap: ref.Name, Key: cmp.Or(ref.Key, key), Field: field})
}

func (f *files) sink(s *Sink) {
	f.auth("spec.sink.auth", s.Auth)
	if s.HTTP != nil {
		s.HTTP.SigningSecretFile = f.secret("spec.sink.http.signingSecretRef", s.HTTP.SigningSecretRef, "secret")
	}
	if s.Postgres != nil {
		s.Postgres.DSNFile = f.secret("spec.sink.postgres.secretRef", &s.Postgres.SecretRef, "dsn")
	}
	f.tls("spec.sink.tls", s.TLS)
}

func (f *files) schemas(all []Validation) {
	for i, v := range all {
		if v.Schema != nil {
			v.Schema.File = f.configMap(fmt.Sprintf("spec.message.validation[%d].schema.configMapRef", i), v.Schema.ConfigMapRef, "schema.json")
		}
	}
}

// secretKeys are the keys of an auth that names none; password is that of the other types.
var secretKeys = map[AuthType]string{
	AuthToken: "token", AuthOAuthBearer: "token", AuthNKey: "nkey", AuthCredentials: "credentials",
}

// userTypes are the types of an auth with the name of a user.
var userTypes = []AuthType{AuthBasic, AuthPlain, AuthScramSHA256, AuthScramSHA512}

func (f *files) auth(field string, a *Auth) {
	if a == nil || a.SecretRef == nil {
		return
	}
	if field += ".secretRef"; a.Username == "" && slices.Contains(userTypes, a.Type) {
		a.UsernameFile = f.secret(field, &SecretRef{Name: a.SecretRef.Name, Key: a.UsernameKey}, "username")
	}
	a.SecretFile = f.secret(field, a.SecretRef, cmp.Or(secretKeys[a.Type], "password"))
}

func (f *files) tls(field string, t *TLS) {
	if t == nil {
		return
	}
	t.CAFile = cmp.Or(f.secret(field+".caSecretRef", t.CASecretRef, "ca.crt"), f.configMap(field+".caConfigMapRef", t.CAConfigMapRef, "ca.crt"))
	t.ClientCertFile, t.ClientKeyFile = f.certificate(field, t.ClientCertSecretRef, t.ClientKeySecretRef)
}

// certificate are the files of a client's certificate and of its key, which is in the Secret of the certificate unless it has
// one of its own.
func (f *files) certificate(field string, cert, key *SecretRef) (certFile, keyFile string) {
	if cert == nil {
		return "", ""
	}
	certFile = f.secret(field+".clientCertSecretRef", cert, "tls.crt")
	if key != nil {
		return certFile, f.secret(field+".clientKeySecretRef", key, "tls.key")
	}
	return certFile, f.secret(field+".clientCertSecretRef", &SecretRef{Name: cert.Name}, "tls.key")
}

// Refer sets the references that are not set, where the paths of files are: settings that were made in Go then have what
// the rules of an object demand.
func (d *Dispatcher) Refer() {
	access := func(a *Auth, t *TLS) {
		if a != nil {
			refer(&a.SecretRef, a.SecretFile)
		}
		if t != nil {
			refer(&t.CASecretRef, t.CAFile)
			refer(&t.ClientCertSecretRef, t.ClientCertFile)
		}
	}
	access(d.Sink.Auth, d.Sink.TLS)
	if r := d.Message.SchemaRegistry; r != nil {
		access(r.Auth, r.TLS)
	}
	if h := d.Sink.HTTP; h != nil {
		refer(&h.SigningSecretRef, h.SigningSecretFile)
	}
	if p := d.Sink.Postgres; p != nil && p.SecretRef.Name == "" && p.DSN+p.DSNFile != "" {
		p.SecretRef.Name = "file"
	}
	for _, v := range d.Message.Validation {
		if v.Schema != nil && v.Schema.File != "" && v.Schema.ConfigMapRef == nil {
			v.Schema.ConfigMapRef = &ConfigMapRef{Name: "file"}
		}
	}
}

func refer(to **SecretRef, file string) {
	if *to == nil && file != "" {
		*to = &SecretRef{Name: "file"}
	}
}

// Variable begins the path of what is in an environment variable, not in a file.
const Variable = "env:"

// ReadFile returns what the file of a path has, or the environment variable whose name follows [Variable]. It fails as
// [os.ReadFile] does, and for a variable that is not set.
func ReadFile(path string) ([]byte, error) {
	name, is := strings.CutPrefix(path, Variable)
	if !is {
		return os.ReadFile(path)
	}
	text, set := os.LookupEnv(name)
	if !set {
		return nil, errors.New("the environment variable " + name + " is not set")
	}
	return []byte(text), nil
}
