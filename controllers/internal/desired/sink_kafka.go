package desired

import (
	"slices"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/dispatcher/config"
)

func kafkaSink(s *v1alpha1.KafkaSink) *config.KafkaSink {
	c := &config.KafkaSink{
		Brokers:         slices.Sorted(slices.Values(s.Brokers)), // a set: its order must not roll pods
		Topic:           s.Topic,
		Mode:            config.KafkaMode(s.Mode),
		Encoding:        config.KafkaEncoding(s.Encoding),
		Subject:         s.Subject,
		ClientID:        s.ClientID,
		Compression:     s.Compression,
		MaxMessageBytes: int(s.MaxMessageBytes),
		Timeout:         config.Duration(s.Timeout.Duration),
		TLS:             sinkTLS(s.TLS),
	}
	if sasl := s.SASL; sasl != nil {
		c.SASL = &config.KafkaSASL{Mechanism: sasl.Mechanism}
		if sasl.Credentials != nil {
			c.SASL.UsernameFile, c.SASL.PasswordFile = Ref{Path: pathUsername}.File(), Ref{Path: pathPassword}.File()
		}
		if sasl.Token != nil {
			c.SASL.TokenFile = Ref{Path: pathToken}.File()
		}
	}
	return c
}

func kafkaRefs(s *v1alpha1.KafkaSink) (refs []Ref) {
	if sasl := s.SASL; sasl != nil {
		refs = slices.Concat(
			credentialRefs("spec.sink.kafka.sasl.credentials", sasl.Credentials),
			keyRefs("spec.sink.kafka.sasl.token", sasl.Token, pathToken),
		)
	}
	return append(refs, tlsRefs("spec.sink.kafka", s.TLS)...)
}
