package kafka

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/outbox-operator/outbox-operator/hack/internal/daemon"
)

const (
	properties = "server.properties"
	controller = "CONTROLLER"
	clusterID  = "b3V0Ym94LW9wZXJhdG9yLQ"
	loginPlain = "org.apache.kafka.common.security.plain.PlainLoginModule required"
	loginScram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
	// Tokens without a signature: header {"alg":"none"}.
	loginBearer = `org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";`
)

// format writes the settings and makes the broker's storage, with the users' passwords.
func (b *Broker) format(ctx context.Context, opts Options) error {
	b.ports = map[string]int{}
	for _, name := range append([]string{controller, Plain}, names(opts.Listeners)...) {
		port, err := daemon.FreePort()
		if err != nil {
			return err
		}
		b.ports[name] = port
	}
	settings, err := b.settings(opts)
	if err != nil {
		return err
	}
	for name, value := range settings {
		settings[name] = strings.ReplaceAll(value, `\`, `\\`)
	}
	if err := b.Write(map[string]string{properties: daemon.Lines("%s=%s", settings)}); err != nil {
		return err
	}
	args := []string{"format", "--cluster-id", clusterID, "--config", b.Path(properties)}
	for user, password := range opts.Users {
		for _, mechanism := range []string{"SCRAM-SHA-256", "SCRAM-SHA-512"} {
			args = append(args, "--add-scram", fmt.Sprintf("%s=[name=%s,password=%s]", mechanism, user, password))
		}
	}
	if out, err := b.Tool(ctx, "kafka.tools.StorageTool", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("make the broker's storage: %w: %s", err, out)
	}
	return nil
}

func (b *Broker) settings(opts Options) (map[string]string, error) {
	s := map[string]string{
		"process.roles":                            "broker,controller",
		"node.id":                                  strconv.Itoa(int(b.node)),
		"controller.quorum.voters":                 "1@" + b.Address(controller),
		"controller.listener.names":                controller,
		"inter.broker.listener.name":               Plain,
		"log.dirs":                                 filepath.Join(b.Dir, "data"),
		"auto.create.topics.enable":                "false",
		"num.network.threads":                      "2",
		"num.io.threads":                           "2",
		"offsets.topic.replication.factor":         "1",
		"offsets.topic.num.partitions":             "1",
		"transaction.state.log.replication.factor": "1",
		"transaction.state.log.min.isr":            "1",
		"group.initial.rebalance.delay.ms":         "0",
		// A broker that was killed registers again when its session is over. It tries after 0.1, 0.3, 0.7,
		// 1.5 and 3.1 s, so this is just before one of them.
		"broker.session.timeout.ms":      "1400",
		"broker.heartbeat.interval.ms":   "250",
		"authorizer.class.name":          "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
		"super.users":                    "User:ANONYMOUS",
		"allow.everyone.if.no.acl.found": "true",
	}
	all := append([]Listener{{Name: controller, Protocol: "PLAINTEXT"}, {Name: Plain, Protocol: "PLAINTEXT"}}, opts.Listeners...)
	var addresses, protocols []string
	for _, l := range all {
		addresses = append(addresses, l.Name+"://"+b.Address(l.Name))
		protocols = append(protocols, l.Name+":"+l.Protocol)
		if err := b.listener(s, l, opts.Users); err != nil {
			return nil, err
		}
	}
	s["listeners"] = strings.Join(addresses, ",")
	s["advertised.listeners"] = strings.Join(addresses[1:], ",")
	if opts.Join != nil { // whose controller is this one's
		s["process.roles"], s["listeners"] = "broker", s["advertised.listeners"]
		s["controller.quorum.voters"] = "1@" + opts.Join.Address(controller)
	}
	s["listener.security.protocol.map"] = strings.Join(protocols, ",")
	maps.Copy(s, opts.Settings)
	return s, nil
}

// listener adds the settings of one listener's security.
func (b *Broker) listener(s map[string]string, l Listener, users map[string]string) error {
	prefix := "listener.name." + strings.ToLower(l.Name) + "."
	if strings.HasPrefix(l.Protocol, "SASL_") {
		plain := loginPlain
		for _, user := range slices.Sorted(maps.Keys(users)) {
			plain += fmt.Sprintf(" user_%s=%q", user, users[user])
		}
		s[prefix+"sasl.enabled.mechanisms"] = "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER"
		s[prefix+"plain.sasl.jaas.config"] = plain + ";"
		s[prefix+"scram-sha-256.sasl.jaas.config"] = loginScram
		s[prefix+"scram-sha-512.sasl.jaas.config"] = loginScram
		s[prefix+"oauthbearer.sasl.jaas.config"] = loginBearer
	}
	if !strings.HasSuffix(l.Protocol, "SSL") {
		return nil
	}
	keys, authority := l.Name+".pem", l.Name+".ca.pem"
	s[prefix+"ssl.keystore.type"], s[prefix+"ssl.keystore.location"] = "PEM", b.Path(keys)
	if l.ClientCAPEM != "" {
		s[prefix+"ssl.truststore.type"], s[prefix+"ssl.truststore.location"] = "PEM", b.Path(authority)
		s[prefix+"ssl.client.auth"] = "required"
	}
	return b.Write(map[string]string{keys: l.KeyPEM + l.CertPEM, authority: l.ClientCAPEM})
}

func names(listeners []Listener) (out []string) {
	for _, l := range listeners {
		out = append(out, l.Name)
	}
	return out
}
