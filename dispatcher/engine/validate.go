package engine

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// minLease is the shortest lease: below it a slow round trip to the database is a lost lease.
const minLease = 100 * time.Millisecond

// withDefaults is a Config with a value in each field.
func withDefaults(c dispatcher.Config) dispatcher.Config {
	c.Topics = slices.Clone(c.Topics)
	c.Lease = cmp.Or(c.Lease, 30*time.Second)
	c.PollInterval = cmp.Or(c.PollInterval, time.Second)
	c.BatchSize = cmp.Or(c.BatchSize, 2000)
	c.Concurrency = cmp.Or(c.Concurrency, 16)
	c.MaxConcurrency = cmp.Or(c.MaxConcurrency, 256)
	c.MaxAttempts = cmp.Or(c.MaxAttempts, 20)
	c.DeliveryTimeout = cmp.Or(c.DeliveryTimeout, 5*time.Minute)
	c.GracePeriod = cmp.Or(c.GracePeriod, 30*time.Second)
	c.MaxBytes = cmp.Or(c.MaxBytes, 32<<20)
	c.Ordering = cmp.Or(c.Ordering, dispatcher.OrderingNone)
	c.Fairness = cmp.Or(c.Fairness, dispatcher.FairnessNone)
	c.OnDead = cmp.Or(c.OnDead, dispatcher.OnDeadContinue)
	if c.Backoff == nil {
		c.Backoff = dispatcher.DefaultBackoff()
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Observer == nil {
		c.Observer = noObserver{}
	}
	return c
}

// validate says everything that is wrong with c at once, each with its remedy.
func validate(c dispatcher.Config) error {
	var errs []error
	refuse := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	refuse(c.Lease < minLease, "lease is %v; set it to at least %v", c.Lease, minLease)
	refuse(c.PollInterval < time.Millisecond, "pollInterval is %v; set it to at least 1ms", c.PollInterval)
	refuse(c.PollInterval > c.Lease/3, "pollInterval (%v) must be at most a third of lease (%v), so that a lost lease is noticed in time; lower pollInterval to %v or raise lease to %v",
		c.PollInterval, c.Lease, c.Lease/3, 3*c.PollInterval)
	refuse(c.BatchSize < 1 || c.BatchSize > 10_000, "batchSize is %d; set it to 1 to 10000", c.BatchSize)
	refuse(c.Concurrency != dispatcher.Auto && (c.Concurrency < 1 || c.Concurrency > 1000), "concurrency is %d; set it to 1 to 1000, or to Auto", c.Concurrency)
	refuse(c.MaxConcurrency < 1 || c.MaxConcurrency > 1000, "maxConcurrency is %d; set it to 1 to 1000", c.MaxConcurrency)
	refuse(c.MaxAttempts < 1 || c.MaxAttempts > 1000, "maxAttempts is %d; set it to 1 to 1000", c.MaxAttempts)
	refuse(c.Ordering != dispatcher.OrderingNone && c.Ordering != dispatcher.OrderingKey, "ordering is %q; set it to %s or %s", c.Ordering, dispatcher.OrderingNone, dispatcher.OrderingKey)
	refuse(c.OnDead != dispatcher.OnDeadContinue && c.OnDead != dispatcher.OnDeadBlock, "onDead is %q; set it to %s or %s", c.OnDead, dispatcher.OnDeadContinue, dispatcher.OnDeadBlock)
	refuse(c.Fairness != dispatcher.FairnessNone && c.Fairness != dispatcher.FairnessTenant, "fairness is %q; set it to %s or %s", c.Fairness, dispatcher.FairnessNone, dispatcher.FairnessTenant)
	refuse(c.Fairness == dispatcher.FairnessTenant && c.Ordering == dispatcher.OrderingKey, "fairness Tenant does not work with ordering Key, which decides itself what comes next; set one of them to None")
	refuse(c.DeliveryTimeout < time.Millisecond, "deliveryTimeout is %v; set it to at least 1ms", c.DeliveryTimeout)
	refuse(c.GracePeriod < 0, "gracePeriod is %v; set it to 0 or more", c.GracePeriod)
	refuse(c.MaxBytes < 0, "maxBytes is %d; set it to at least 1", c.MaxBytes)
	rate := func(name string, r dispatcher.Rate) {
		refuse(r != dispatcher.Rate{} && (r.Events < 1 || r.Period < time.Millisecond), "%s is %d events in %v; set it to at least 1 in at least 1ms", name, r.Events, r.Period)
	}
	rate("rateLimit", c.RateLimit)
	rate("tenantRateLimit", c.TenantRateLimit)
	refuse(c.TenantRateLimit != dispatcher.Rate{} && c.Fairness != dispatcher.FairnessTenant, "tenantRateLimit needs fairness Tenant; set both, or none")
	for topic, r := range c.TopicRateLimits {
		rate(fmt.Sprintf("the rate limit of topic %q", topic), r)
	}
	for i, topic := range c.Topics {
		refuse(topic == "", "topics[%d] is empty; give it a name or take it out", i)
		refuse(slices.Contains(c.Topics[:i], topic), "topics lists %q twice; take one out", topic)
	}
	return errors.Join(errs...)
}

// noObserver is the Observer of those who want none.
type noObserver struct{}

func (noObserver) Claimed(string, int)                                           {}
func (noObserver) Delivered(*dispatcher.Event, time.Duration, time.Duration)     {}
func (noObserver) Acked(*dispatcher.Event, time.Duration)                        {}
func (noObserver) Failed(*dispatcher.Event, error, time.Duration, time.Duration) {}
func (noObserver) Expired(string, int)                                           {}
func (noObserver) DeadLettered(dispatcher.DeadEvent)                             {}
func (noObserver) LeaseLost(int)                                                 {}
func (noObserver) Refused(int)                                                   {}
func (noObserver) ClaimRefused()                                                 {}
