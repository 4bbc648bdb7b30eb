package spec

import (
	"fmt"
	"slices"
	"time"
)

// RateLimit is a number of events in a period. They are spread evenly over it.
type RateLimit struct {
	// Events is how many, 1 to 1000000. Required.
	Events int `json:"events"`
	// Period is the time, 1s to 24h. Defaults to 1s.
	Period Duration `json:"period,omitempty"`
}

// TopicRateLimit is the limit of one topic.
type TopicRateLimit struct {
	// Topic is its name, 1 to 255 characters. Required.
	Topic string `json:"topic"`
	// Events and Period are as in [RateLimit].
	Events int      `json:"events"`
	Period Duration `json:"period,omitempty"`
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
	p.number(field+".events", r.Events, 1, 1_000_000)
	p.duration(field+".period", r.Period, time.Second, 24*time.Hour)
}
