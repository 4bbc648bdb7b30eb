package desired

import (
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/dispatcher/config"
)

// SinkKind names the kind of sink, as the Sink column shows it.
func SinkKind(s v1alpha1.Sink) string {
	switch {
	case s.HTTP != nil:
		return "http"
	case s.Kafka != nil:
		return "kafka"
	case s.Log != nil:
		return "log"
	case s.NATS != nil:
		return "nats"
	case s.Postgres != nil:
		return "postgres"
	case s.PubSub != nil:
		return "pubsub"
	case s.RabbitMQ != nil:
		return "rabbitmq"
	case s.Redis != nil:
		return "redis"
	case s.ServiceBus != nil:
		return "serviceBus"
	case s.SNS != nil:
		return "sns"
	case s.SQS != nil:
		return "sqs"
	}
	return ""
}

func sink(s v1alpha1.Sink) (c config.Sink) {
	switch {
	case s.HTTP != nil:
		c.HTTP = httpSink(s.HTTP)
	case s.Kafka != nil:
		c.Kafka = kafkaSink(s.Kafka)
	case s.Log != nil:
		c.Log = &config.LogSink{Payload: s.Log.Payload}
	case s.NATS != nil:
		c.NATS = natsSink(s.NATS)
	case s.Postgres != nil:
		c.Postgres = postgresSink(s.Postgres)
	case s.RabbitMQ != nil:
		c.RabbitMQ = rabbitMQSink(s.RabbitMQ)
	case s.Redis != nil:
		c.Redis = redisSink(s.Redis)
	case s.PubSub != nil:
		c.PubSub = pubsubSink(s.PubSub)
	case s.ServiceBus != nil:
		c.ServiceBus = serviceBusSink(s.ServiceBus)
	case s.SNS != nil:
		c.SNS = snsSink(s.SNS)
	case s.SQS != nil:
		c.SQS = sqsSink(s.SQS)
	}
	return c
}

// sinkRefs are the keys of Secrets that the sink names.
func sinkRefs(s v1alpha1.Sink) []Ref {
	switch {
	case s.HTTP != nil:
		return httpRefs(s.HTTP)
	case s.Kafka != nil:
		return kafkaRefs(s.Kafka)
	case s.NATS != nil:
		return natsRefs(s.NATS)
	case s.Postgres != nil:
		return postgresRefs(s.Postgres)
	case s.RabbitMQ != nil:
		return rabbitMQRefs(s.RabbitMQ)
	case s.Redis != nil:
		return redisRefs(s.Redis)
	}
	return nil
}

// credentialRefs are the keys of a Secret of type kubernetes.io/basic-auth.
func credentialRefs(field string, secret *v1alpha1.SecretName) []Ref {
	if secret == nil {
		return nil
	}
	return []Ref{{secret.Name, "username", pathUsername, field}, {secret.Name, "password", pathPassword, field}}
}

// keyRefs is one key of a Secret.
func keyRefs(field string, key *v1alpha1.SecretKey, path string) []Ref {
	if key == nil {
		return nil
	}
	return []Ref{{key.Name, key.Key, path, field}}
}

// tlsRefs are the keys of Secrets that a sink's tls names; field is the sink's.
func tlsRefs(field string, tls *v1alpha1.TLS) []Ref {
	if tls == nil {
		return nil
	}
	refs := keyRefs(field+".tls.ca", tls.CA, pathSinkCA)
	if own := tls.ClientCertificate; own != nil {
		field += ".tls.clientCertificate"
		refs = append(refs, Ref{own.Name, "tls.crt", pathClientCert, field}, Ref{own.Name, "tls.key", pathClientKey, field})
	}
	return refs
}

// sinkTLS names the files that tlsRefs puts there.
func sinkTLS(tls *v1alpha1.TLS) *config.TLS {
	if tls == nil {
		return nil
	}
	c := &config.TLS{ServerName: tls.ServerName}
	if tls.CA != nil {
		c.CAFile = Ref{Path: pathSinkCA}.File()
	}
	if tls.ClientCertificate != nil {
		c.CertFile, c.KeyFile = Ref{Path: pathClientCert}.File(), Ref{Path: pathClientKey}.File()
	}
	return c
}
