package config

// What several sinks have.

// ContentMode is how an event is put into what a destination takes, as the bindings of CloudEvents name it.
type ContentMode string

// The content modes. Not every sink has all of them.
const (
	// Binary puts the attributes into headers, properties or fields, and the payload into the body.
	Binary ContentMode = "Binary"
	// Structured puts an event into one JSON object.
	Structured ContentMode = "Structured"
	// Batch puts several events into a JSON array.
	Batch ContentMode = "Batch"
)

func (p *problems) contentMode(field string, mode ContentMode, choices ...ContentMode) {
	words := make([]string, len(choices))
	for i, choice := range choices {
		words[i] = string(choice)
	}
	p.oneOf(field, string(mode), words...)
}

// BasicAuth is a user and a password.
type BasicAuth struct {
	// Username or UsernameFile, which holds it, is the user's name; one of them is required.
	Username     string `json:"username,omitempty"`
	UsernameFile string `json:"usernameFile,omitempty"`
	// PasswordFile holds the password. Required.
	PasswordFile string `json:"passwordFile"`
}

func (b *BasicAuth) validate(p *problems, field string) {
	if b == nil {
		return
	}
	p.valueOrFile(field+".username", b.Username, b.UsernameFile)
	p.required(field+".passwordFile", b.PasswordFile)
}

// TLS says whom to trust and how to identify oneself.
type TLS struct {
	// CAFile holds PEM certificates that replace the system's roots.
	CAFile string `json:"caFile,omitempty"`
	// ClientCertFile and ClientKeyFile are the client's certificate and key, both or neither.
	ClientCertFile string `json:"clientCertFile,omitempty"`
	ClientKeyFile  string `json:"clientKeyFile,omitempty"`
	// ServerName is checked against the server's certificate instead of the URL's host.
	ServerName string `json:"serverName,omitempty"`
}

func (t *TLS) validate(p *problems, field string) {
	p.when(t != nil && (t.ClientCertFile == "") != (t.ClientKeyFile == ""), field, "has only one of clientCertFile and clientKeyFile; set both or neither")
}

// validateHTTPS is validate for what has a URL, whose scheme says whether there is TLS.
func (t *TLS) validateHTTPS(p *problems, field string, https bool) {
	if t == nil {
		return
	}
	t.validate(p, field)
	p.when(*t == TLS{}, field, "is empty; set caFile, clientCertFile and clientKeyFile, or serverName, or remove it")
	p.when(!https, field, "needs an https:// url; change url, or remove tls")
}
