package config

import (
	"strings"
	"testing"
)

// The address is checked as that of sink http, and an error names its own field.
func TestNotifyRefusesInvalidAddresses(t *testing.T) {
	c, err := load(t, minimal+"\nnotify: {url: 'https://oncall.example.com/dead-letters', auth: {type: Token, secretFile: a}, signingSecretFile: b, tls: {serverName: c}}\n")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Validate(); err != nil {
		t.Errorf("a whole one is refused: %v", err)
	}
	for want, change := range map[string]func(*Notify){
		"notify.url must be an http:// or https:// URL":         func(n *Notify) { n.URL = "" },
		"notify.url must not hold a user or a password":         func(n *Notify) { n.URL = "https://a:b@c" },
		`notify.auth.type is ""; choose one of Basic, Token`:    func(n *Notify) { n.Auth = &Auth{} },
		"notify.tls needs an https:// url; change url":          func(n *Notify) { n.URL = "http://a" },
		"notify.tls is empty; set caFile":                       func(n *Notify) { n.TLS = &TLS{} },
		"notify.tls has only one of clientCertFile and clientK": func(n *Notify) { n.TLS = &TLS{ClientKeyFile: "a"} },
	} {
		changed := *c.Notify
		change(&changed)
		wrong := c
		wrong.Notify = &changed
		if err := wrong.Validate(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
