package config

import (
	"strings"
	"testing"
	"time"
)

func TestRateLimitsAreValidated(t *testing.T) {
	c, err := load(t, minimal+"\ndelivery: {rateLimit: {events: 500}, topicRateLimits: [{topic: orders, events: 5, period: 1m}, {topic: returns, events: 5}]}\n")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Validate(); err != nil {
		t.Errorf("valid limits are refused: %v", err)
	}
	if d := c.Delivery; d.RateLimit.Period.D() != time.Second || d.TopicRateLimits[0].Period.D() != time.Minute || d.TopicRateLimits[1].Period.D() != time.Second {
		t.Errorf("the periods are %v, %v", d.RateLimit, d.TopicRateLimits)
	}
	for want, change := range map[string]func(*Delivery){
		"delivery.rateLimit.events is 0; set it from 1 to 1000000": func(d *Delivery) { d.RateLimit = &RateLimit{Period: Duration(time.Second)} },
		"delivery.rateLimit.period is 10ms; set it from 1s to 24h": func(d *Delivery) { d.RateLimit = &RateLimit{1, Duration(10 * time.Millisecond)} },
		"delivery.topicRateLimits[0].topic is missing":             func(d *Delivery) { d.TopicRateLimits = []TopicRateLimit{{Events: 1, Period: Duration(time.Second)}} },
		`delivery.topicRateLimits[1].topic is "a" a second time; remove`: func(d *Delivery) {
			d.TopicRateLimits = []TopicRateLimit{{"a", 1, Duration(time.Second)}, {"a", 1, Duration(time.Second)}}
		},
		"delivery.topicRateLimits[0].events is -1; set it from 1 to 10000": func(d *Delivery) { d.TopicRateLimits = []TopicRateLimit{{"a", -1, Duration(time.Second)}} },
		"delivery.fairness Tenant does not work with ordering Key":         func(d *Delivery) { d.Fairness, d.Ordering = FairnessTenant, OrderingKey },
		"delivery.tenantRateLimit needs fairness Tenant":                   func(d *Delivery) { d.TenantRateLimit = &RateLimit{1, Duration(time.Second)} },
		"delivery.tenantRateLimit.events is 0; set it from 1 to 1000000": func(d *Delivery) {
			d.Fairness, d.TenantRateLimit = FairnessTenant, &RateLimit{0, Duration(time.Second)}
		},
		`delivery.fairness is "Topic"; `:                             func(d *Delivery) { d.Fairness = "Topic" },
		"delivery.topicRateLimits has 257 entries; list at most 256": func(d *Delivery) { d.TopicRateLimits = make([]TopicRateLimit, 257) },
	} {
		wrong := c
		change(&wrong.Delivery)
		if err := wrong.Validate(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
