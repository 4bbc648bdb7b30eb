package config

import (
	"fmt"
	"net"
	"strconv"
	"time"
)

// RedisMode is how an event is put into an entry of a stream.
type RedisMode string

// The modes, named as those of the CloudEvents bindings. There is none for Redis.
const (
	RedisBinary     RedisMode = "Binary"
	RedisStructured RedisMode = "Structured"
)

// RedisSink adds CloudEvents 1.0 to streams of Redis, of Valkey, or of what speaks their protocol.
type RedisSink struct {
	// Addresses are host:port: of the server, or with cluster of some of its nodes, at most 32; the
	// others are found through them. Required.
	Addresses []string `json:"addresses"`
	// Cluster says that the addresses are those of a cluster. Defaults to false.
	Cluster bool `json:"cluster,omitempty"`
	// Stream is the key that every event is added to, at most 256 bytes. Defaults to the event's topic.
	Stream string `json:"stream,omitempty"`
	// MaxLen is about how many entries a stream keeps (MAXLEN ~): the oldest are removed, read or
	// not. At most 1000000000000. Defaults to 0, which keeps all.
	MaxLen int64 `json:"maxLen,omitempty"`
	// Mode is Binary (a field for each attribute, the payload in the field data) or Structured (one
	// JSON object in the field event). Defaults to Binary.
	Mode RedisMode `json:"mode,omitempty"`
	// Replicas is how many replicas must have an event before it counts as delivered (WAIT), at most
	// 100. Defaults to 0.
	Replicas int `json:"replicas,omitempty"`
	// Timeout bounds a delivery, 100ms to 10m. Defaults to 10s.
	Timeout Duration `json:"timeout,omitempty"`
	// Database is the number of the database; a cluster has only 0. Defaults to 0.
	Database int `json:"database,omitempty"`
	// UsernameFile holds the ACL user's name. Defaults to the user default.
	UsernameFile string `json:"usernameFile,omitempty"`
	// PasswordFile holds the password. Defaults to none. Both files are read for each connection.
	PasswordFile string `json:"passwordFile,omitempty"`
	// TLS, even when it is empty, makes connections TLS. Defaults to none.
	TLS *TLS `json:"tls,omitempty"`
}

// ApplyDefaults sets the fields that are not set to the defaults in their comments.
func (r *RedisSink) ApplyDefaults() {
	setDefault(&r.Mode, RedisBinary)
	setDefault(&r.Timeout, Duration(10*time.Second))
}

func (r *RedisSink) validate(p *problems) {
	p.when(len(r.Addresses) < 1 || len(r.Addresses) > 32, "sink.redis.addresses", "has %d entries; list 1 to 32 addresses, each as host:port", len(r.Addresses))
	p.when(len(r.Addresses) > 1 && !r.Cluster, "sink.redis.addresses", "has %d entries, which only a cluster has; set cluster to true, or keep one", len(r.Addresses))
	for i, address := range r.Addresses {
		host, port, err := net.SplitHostPort(address)
		if err == nil {
			_, err = strconv.ParseUint(port, 10, 16)
		}
		p.when(err != nil || host == "" || len(address) > 261, fmt.Sprintf("sink.redis.addresses[%d]", i), "is %q; write it as host:port, such as redis:6379", address)
	}
	p.when(len(r.Stream) > 256, "sink.redis.stream", "has more than 256 bytes; shorten it")
	p.when(r.MaxLen < 0 || r.MaxLen > 1_000_000_000_000, "sink.redis.maxLen", "is %d; set it from 1 to 1000000000000, or remove it to keep all entries", r.MaxLen)
	p.oneOf("sink.redis.mode", string(r.Mode), string(RedisBinary), string(RedisStructured))
	p.number("sink.redis.replicas", r.Replicas, 0, 100)
	p.duration("sink.redis.timeout", r.Timeout, 100*time.Millisecond, 10*time.Minute)
	p.number("sink.redis.database", r.Database, 0, 65_535)
	p.when(r.Cluster && r.Database != 0, "sink.redis.database", "is %d, and a cluster has only 0; remove it", r.Database)
	p.when(r.UsernameFile != "" && r.PasswordFile == "", "sink.redis.passwordFile", "is missing, and usernameFile needs it; name the file with the user's password")
	if r.TLS != nil {
		p.when((r.TLS.CertFile == "") != (r.TLS.KeyFile == ""), "sink.redis.tls", "has only one of certFile and keyFile; set both or neither")
	}
}

// Validate is what [Config.Validate] says of this section.
func (r *RedisSink) Validate() error {
	var p problems
	r.validate(&p)
	return p.join()
}
