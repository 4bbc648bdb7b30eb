package spec

import (
	"fmt"
	"net"
	"strconv"
	"time"
)

// RedisSink adds CloudEvents 1.0 to streams of Redis, of Valkey, or of what speaks their protocol.
type RedisSink struct {
	// Addresses are host:port: of the server, or of some nodes of a cluster, at most 32; the others are
	// found through them. Required.
	Addresses []string `json:"addresses"`
	// Topology is Standalone (one server) or Cluster. Defaults to Standalone.
	Topology RedisTopology `json:"topology,omitempty"`
	// Stream is the key that every event is added to, at most 256 bytes. Defaults to the event's topic.
	Stream string `json:"stream,omitempty"`
	// MaxLen is about how many entries a stream keeps (MAXLEN ~): the oldest are removed, read or
	// not. At most 1000000000000. Defaults to 0, which keeps all.
	MaxLen int64 `json:"maxLen,omitempty"`
	// Replicas is how many replicas must have an event before it counts as delivered (WAIT), at most
	// 100. Defaults to 0.
	Replicas int `json:"replicas,omitempty"`
	// Database is the number of the database; a cluster has only 0. Defaults to 0.
	Database int `json:"database,omitempty"`
	// Access is what the file has next to the kind: auth, tls and timeout of the sink.
	Access `json:"-"`
}

// RedisTopology says what servers there are.
type RedisTopology string

// Values of [RedisTopology].
const (
	RedisStandalone RedisTopology = "Standalone"
	RedisCluster    RedisTopology = "Cluster"
)

// ApplyDefaults sets the fields that are not set to the defaults in their comments.
func (r *RedisSink) ApplyDefaults() {
	setDefault(&r.Topology, RedisStandalone)
	setDefault(&r.ContentMode, Binary)
	setDefault(&r.Timeout, Duration(10*time.Second))
}

func (r *RedisSink) validate(p *problems) {
	p.when(len(r.Addresses) < 1 || len(r.Addresses) > 32, "sink.redis.addresses", "has %d entries; list 1 to 32 addresses, each as host:port", len(r.Addresses))
	p.oneOf("sink.redis.topology", string(r.Topology), string(RedisStandalone), string(RedisCluster))
	p.when(len(r.Addresses) > 1 && r.Topology != RedisCluster, "sink.redis.addresses", "has %d entries, which only a cluster has; set topology to Cluster, or keep one", len(r.Addresses))
	for i, address := range r.Addresses {
		host, port, err := net.SplitHostPort(address)
		if err == nil {
			_, err = strconv.ParseUint(port, 10, 16)
		}
		p.when(err != nil || host == "" || len(address) > 261, fmt.Sprintf("sink.redis.addresses[%d]", i), "is %q; write it as host:port, such as redis:6379", address)
	}
	p.when(len(r.Stream) > 256, "sink.redis.stream", "has more than 256 bytes; shorten it")
	p.when(r.MaxLen < 0 || r.MaxLen > 1_000_000_000_000, "sink.redis.maxLen", "is %d; set it from 1 to 1000000000000, or remove it to keep all entries", r.MaxLen)
	r.contentModes(p, "redis", Binary, Structured)
	p.number("sink.redis.replicas", r.Replicas, 0, 100)
	p.number("sink.redis.database", r.Database, 0, 65_535)
	p.when(r.Topology == RedisCluster && r.Database != 0, "sink.redis.database", "is %d, and a cluster has only 0; remove it", r.Database)
	r.Access.validate(p, AuthBasic, AuthPassword)
}

// Validate is what [Config.Validate] says of this section. It fails as that does.
func (r *RedisSink) Validate() error { return validated(r) }
