package spec

// RateLimit is a number of events in a period, over which they are spread evenly.
type RateLimit struct {
	// events is how many. From 1 to 1000000.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	Events int32 `json:"events,omitempty"`

	// period is the time. From 1s to 24h. Defaults to 1s.
	// +optional
	// +kubebuilder:default="1s"
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1s') && duration(self) <= duration('24h')",message="period must be a duration from 1s to 24h, such as 1m"
	Period Duration `json:"period,omitzero"`
}

// TopicRateLimit is the limit of one topic.
type TopicRateLimit struct {
	// topic is its name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	Topic string `json:"topic,omitempty"`

	// events is how many. From 1 to 1000000.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	Events int32 `json:"events,omitempty"`

	// period is the time. From 1s to 24h. Defaults to 1s.
	// +optional
	// +kubebuilder:default="1s"
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1s') && duration(self) <= duration('24h')",message="period must be a duration from 1s to 24h, such as 1m"
	Period Duration `json:"period,omitzero"`
}

// RateLimited reports whether processes of the dispatcher share a limit.
func (d Delivery) RateLimited() bool { return d.RateLimit != nil || len(d.TopicRateLimits) > 0 }
