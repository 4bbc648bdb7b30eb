package spec

import "time"

// RedisSink adds CloudEvents 1.0 to streams of Redis, of Valkey, or of a server with the same protocol. An event is
// delivered when the server has responded; how durable that is depends on its persistence (appendonly, appendfsync).
//
// +kubebuilder:validation:XValidation:rule="self.topology == 'Cluster' ? !has(self.database) || self.database == 0 : self.addresses.size() == 1",message="redis must have one entry in addresses unless topology is Cluster, which has only the database 0; set topology to Cluster, keep one address, or remove database"
// +kubebuilder:validation:XValidation:rule="!has(self.stream) || bytes(self.stream).size() <= 256",fieldPath=".stream",message="stream must have at most 256 bytes, of which some characters have several; shorten it"
type RedisSink struct {
	// addresses are host:port of the server, or of some nodes of a cluster; these
	// report the others.
	// +required
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=261
	// +kubebuilder:validation:XValidation:rule="self.all(address, address.matches('^([A-Za-z0-9._-]+|\\\\[[0-9A-Fa-f:.]+\\\\]):[1-9][0-9]{0,4}$') && int(address.substring(address.lastIndexOf(':') + 1)) <= 65535)",message="addresses must each be host:port, such as redis:6379"
	Addresses []string `json:"addresses,omitempty"`

	// topology is Standalone (one server) or Cluster. Defaults to Standalone.
	// +optional
	// +kubebuilder:default=Standalone
	Topology RedisTopology `json:"topology,omitempty"`

	// stream is the key that every event is added to, unless a route says otherwise.
	// When not set: the stream with the name of the event's topic.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Stream string `json:"stream,omitempty"`

	// maxLen is the approximate number of entries that a stream keeps (MAXLEN ~); the
	// oldest are removed, read or not. From 1 to 1000000000000. When not set: all are
	// kept.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000000000
	MaxLen int64 `json:"maxLen,omitempty"`

	// replicas is the number of replicas that must have an event before it counts as
	// delivered (WAIT). From 0 to 100. Defaults to 0.
	// +optional
	// +kubebuilder:default=0
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	Replicas int32 `json:"replicas,omitempty"`

	// database is the number of the database. From 0 to 65535. When not set: 0.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	Database int32 `json:"database,omitempty"`

	// Access is what the object has next to the kind: auth, tls, content mode and timeout of the sink.
	Access `json:"-"`
}

// RedisTopology is how the servers are arranged.
// +kubebuilder:validation:Enum=Standalone;Cluster
type RedisTopology string

const (
	// RedisStandalone is one server.
	RedisStandalone RedisTopology = "Standalone"
	// RedisCluster are the nodes of a cluster.
	RedisCluster RedisTopology = "Cluster"
)

// ApplyDefaults sets the fields that are not set to the defaults in their comments.
func (r *RedisSink) ApplyDefaults() {
	setDefault(&r.Topology, RedisStandalone)
	setDefault(&r.ContentMode, Binary)
	setDefault(&r.Timeout, Duration(10*time.Second))
}
