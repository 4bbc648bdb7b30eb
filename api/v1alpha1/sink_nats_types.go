package v1alpha1

// NATSSink publishes CloudEvents 1.0 to streams of NATS JetStream. An event is delivered when its
// stream confirms that it is stored.
type NATSSink struct {
	// servers are nats://host:port or tls://host:port of the servers; each connection
	// takes one at random. One tls:// turns on TLS for all connections.
	// +required
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=270
	// +kubebuilder:validation:XValidation:rule="self.all(server, server.matches('^(nats|tls)://([A-Za-z0-9._-]+|\\\\[[0-9A-Fa-f:.]+\\\\]):[1-9][0-9]{0,4}$') && int(server.substring(server.lastIndexOf(':') + 1)) <= 65535)",message="servers must each be nats://host:port or tls://host:port, such as nats://nats:4222; put a user and password into a Secret and name it in sink.auth"
	Servers []string `json:"servers,omitempty"`

	// subject receives every event, unless a route says otherwise. When not set: the
	// subject with the name of the event's topic. A stream must capture it: streams
	// are never created.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="self.matches('^[^[:space:][:cntrl:].*>]+([.][^[:space:][:cntrl:].*>]+)*$') && !self.startsWith('$') && !self.startsWith('_INBOX.')",message="subject must be words with dots between them, without spaces and wildcards, and none of the servers' own, which start with $ or _INBOX; correct it"
	Subject string `json:"subject,omitempty"`

	// stream is the stream that must capture the subject; delivery to another one
	// fails. When not set: any stream.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="self.matches('^[^[:space:][:cntrl:].*>/\\\\\\\\]+$')",message="stream must be a name that a stream can have: no spaces, dots, wildcards and slashes"
	Stream string `json:"stream,omitempty"`
}
