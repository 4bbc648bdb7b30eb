package config

// Notify is an address that is notified of each dead letter, by a CloudEvent over HTTP. Its members are those of
// [HTTPSink].
type Notify struct {
	// URL is http or https, without user and password. Required.
	URL string `json:"url"`
	// Auth are the credentials of every request. Defaults to none.
	Auth *Auth `json:"auth,omitempty"`
	// SigningSecretFile holds what every request is signed with. Defaults to none: requests are not signed.
	SigningSecretFile string `json:"signingSecretFile,omitempty"`
	// TLS is for https URLs; at least one member must be set.
	TLS *TLS `json:"tls,omitempty"`
}

// Sink is the sink that sends the notifications.
func (n *Notify) Sink() HTTPSink {
	s := HTTPSink{URL: n.URL, SigningSecretFile: n.SigningSecretFile, Access: Access{Auth: n.Auth, TLS: n.TLS}}
	s.ApplyDefaults()
	return s
}

func (n *Notify) validate(p *problems) {
	if n != nil {
		sink := n.Sink()
		sink.validateAs(p, "notify", "notify")
	}
}
