package spec

import "time"

// CopySink copies events to other topics of their namespace, in the same database, each once. Every copy is an event like any
// other: another dispatcher delivers it.
type CopySink struct {
	// topics are the topics that each event is copied to. Each needs a dispatcher of its
	// own.
	// +required
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=255
	Topics []string `json:"topics,omitempty"`

	// Access is what the object has next to the kind: auth, tls, content mode and timeout of the sink.
	Access `json:"-"`
}

// ApplyDefaults sets the fields that are not set to the defaults in their comments.
func (c *CopySink) ApplyDefaults() { setDefault(&c.Timeout, Duration(10*time.Second)) }
