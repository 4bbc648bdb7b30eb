package config

// DeadLetters says what happens when events become dead, in addition to their dead letters.
type DeadLetters struct {
	// Notify is the address that is notified of each dead letter. Defaults to none.
	Notify *Notify `json:"notify,omitempty"`
}

// Notify is an address that is notified of each dead letter, by a CloudEvent over HTTP. Its members are those of
// [HTTPSink].
type Notify struct {
	// URL is http or https, without user and password. Required.
	URL string `json:"url"`
	// Auth are the credentials of every request. Defaults to none.
	Auth *HTTPAuth `json:"auth,omitempty"`
	// Signing signs every request, as the Standard Webhooks specification says. Defaults to none.
	Signing *HTTPSigning `json:"signing,omitempty"`
	// TLS is for https URLs; at least one member must be set.
	TLS *TLS `json:"tls,omitempty"`
}

// Sink is the sink that sends the notifications.
func (n *Notify) Sink() HTTPSink {
	s := HTTPSink{URL: n.URL, Auth: n.Auth, Signing: n.Signing, TLS: n.TLS}
	s.ApplyDefaults()
	return s
}

func (d DeadLetters) validate(p *problems) {
	if d.Notify != nil {
		sink := d.Notify.Sink()
		sink.validateAs(p, "deadLetters.notify")
	}
}
