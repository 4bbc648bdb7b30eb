package spec

import (
	"fmt"
	"slices"
	"time"
)

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

func (d *Delivery) defaultRates() {
	for _, limit := range []*RateLimit{d.RateLimit, d.TenantRateLimit} {
		if limit != nil {
			setDefault(&limit.Period, Duration(time.Second))
		}
	}
	for i := range d.TopicRateLimits {
		setDefault(&d.TopicRateLimits[i].Period, Duration(time.Second))
	}
}

func (d Delivery) validateRates(p *problems) {
	if t := d.TenantRateLimit; t != nil {
		t.validate(p, "delivery.tenantRateLimit")
		p.when(d.Fairness != FairnessTenant, "delivery.tenantRateLimit", "needs fairness Tenant; set it, or remove tenantRateLimit")
	}
	if d.RateLimit != nil {
		d.RateLimit.validate(p, "delivery.rateLimit")
	}
	p.when(len(d.TopicRateLimits) > 256, "delivery.topicRateLimits", "has %d entries; list at most 256", len(d.TopicRateLimits))
	for i, t := range d.TopicRateLimits {
		field := fmt.Sprintf("delivery.topicRateLimits[%d]", i)
		p.length(field+".topic", t.Topic, 255)
		p.when(slices.ContainsFunc(d.TopicRateLimits[:i], func(o TopicRateLimit) bool { return o.Topic == t.Topic }), field+".topic", "is %q a second time; remove one", t.Topic)
		RateLimit{t.Events, t.Period}.validate(p, field)
	}
}

func (r RateLimit) validate(p *problems, field string) {
	p.number(field+".events", int(r.Events), 1, 1_000_000)
	p.duration(field+".period", r.Period, time.Second, 24*time.Hour)
}
