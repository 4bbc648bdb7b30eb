// Package kafka runs a broker of Apache Kafka for tests, from Apache's own artifacts: one
// node in KRaft mode, on 127.0.0.1, with its own ports, data and settings, or a second one next to it.
package kafka

import (
	"context"
	_ "embed"
	"fmt"
	"maps"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outbox-operator/outbox-operator/hack/internal/daemon"
	"github.com/outbox-operator/outbox-operator/hack/internal/fetch"
)

// Plain is the name of the listener that every broker has: no TLS, no authentication, and all
// rights.
const Plain = "PLAIN"

// ErrMissing is returned by [Start] when this machine has no Java or no Kafka, and cannot get them.
var ErrMissing = fetch.ErrMissing

// jars are the runtime dependencies of org.apache.kafka:kafka_2.13, of its kafka-tools without Connect, and of
// org.slf4j:slf4j-simple.
//
//go:embed jars.sha256
var jars string

// Options say how a broker is made. The zero value is a broker with the listener [Plain] alone.
type Options struct {
	// Listeners are added to Plain.
	Listeners []Listener
	// Users can log in with SASL, by any mechanism with a password. A user may do everything on
	// what has no ACL.
	Users map[string]string
	// Settings are added to server.properties and win over this package's own.
	Settings map[string]string
	// Join is the broker that made the cluster which this one joins, as its second and last. Defaults to
	// none: a cluster of its own.
	Join *Broker
	// ShortLived makes the broker start with less work and carry less: Java compiles quickly instead of well. It is
	// for tests that restart the broker. Defaults to false.
	ShortLived bool
}

// Listener is a port of the broker.
type Listener struct {
	// Name is what Address takes: upper-case characters and digits.
	Name string
	// Protocol is PLAINTEXT, SASL_PLAINTEXT, SSL or SASL_SSL.
	Protocol string
	// CertPEM and KeyPEM (PKCS 8) are the server's certificate and key, for SSL and SASL_SSL.
	CertPEM, KeyPEM string
	// ClientCAPEM signs the certificates that clients must have. Defaults to none: they need none.
	ClientCAPEM string
}

// Broker is a running broker. On Linux it ends with this process at the latest. Its methods are not
// for concurrent use.
type Broker struct {
	daemon.Server
	classPath string
	java      []string
	node      int32
	ports     map[string]int
}

// Start makes a new broker and waits until it is ready. What it runs is fetched when it is not on the
// machine: a Java runtime from the distribution's package, Kafka from Maven Central.
// It returns an error when it is not ready before ctx ends, or cannot be installed.
func Start(ctx context.Context, opts Options) (*Broker, error) {
	paths, err := fetch.Java(ctx, jars)
	if err != nil {
		return nil, err
	}
	server, err := daemon.NewServer("outbox-kafka-*")
	if err != nil {
		return nil, err
	}
	b := &Broker{Server: server, classPath: strings.Join(paths, ":"), node: 1}
	b.java = []string{"-Xmx384m", "-XX:+UseSerialGC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"}
	if opts.ShortLived {
		b.java = append(b.java, "-XX:TieredStopAtLevel=1")
	}
	if opts.Join != nil {
		b.node = opts.Join.node + 1
	}
	return b, b.Launch(ctx, func() error { return b.format(ctx, opts) }, daemon.Program{
		Name: "Kafka", Ready: b.ready,
		Command: func() *exec.Cmd { return b.Tool(context.Background(), "kafka.Kafka", b.Path(properties)) },
	})
}

// Address is host:port of a listener. It stays the same over Restart.
func (b *Broker) Address(listener string) string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(b.ports[listener]))
}

// Node is the broker's id in its cluster.
func (b *Broker) Node() int32 { return b.node }

// Tool returns a command that runs one of Kafka's own tools, by its Java class, in the broker's
// directory.
func (b *Broker) Tool(ctx context.Context, class string, args ...string) *exec.Cmd {
	args = slices.Concat(b.java, []string{"-cp", b.classPath, class}, args)
	cmd := exec.CommandContext(ctx, "java", args...)
	cmd.Dir = b.Dir
	return cmd
}

// ready is nil when the controller lists the broker, which is from when it may lead partitions.
func (b *Broker) ready(ctx context.Context) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(b.Address(Plain)))
	if err != nil {
		return err
	}
	defer client.Close()
	cluster, err := kadm.NewClient(client).BrokerMetadata(ctx)
	if err == nil && !slices.Contains(cluster.Brokers.NodeIDs(), b.node) {
		err = fmt.Errorf("the controller lists the brokers %v, and not %d", cluster.Brokers.NodeIDs(), b.node)
	}
	return err
}

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
