package desired

import (
	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

func (m *mounts) deadLetters(d *v1alpha1.DeadLetters) (c config.DeadLetters) {
	if d == nil || d.Notify == nil {
		return c
	}
	n := d.Notify
	c.Notify = &config.Notify{
		URL:     n.URL,
		Auth:    m.httpAuth("spec.deadLetters.notify.auth", n.Auth),
		Signing: m.signing("spec.deadLetters.notify.signing", n.Signing),
		TLS:     m.tls("spec.deadLetters.notify.tls", n.TLS),
	}
	return c
}
