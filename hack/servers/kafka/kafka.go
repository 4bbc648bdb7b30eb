// Package kafka runs a broker of Apache Kafka for tests, from Apache's own artifacts: one
// node in KRaft mode, on 127.0.0.1, with its own ports, data and settings, or a second one next to it.
package kafka

import (
	"context"
	_ "embed"
	"fmt"
	"net"
	"os/exec"
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
