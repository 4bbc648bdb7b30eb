package spec

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

func TestPipelineValidate(t *testing.T) {
	many := func(n int) []string { return slices.Repeat([]string{"a"}, n) }
	schema := func(s PayloadSchema) func(*Config) {
		return func(c *Config) { c.Message.Validation = []Validation{{Schema: &s}} }
	}
	rule := func(r ...Rule) func(*Config) {
		return func(c *Config) { c.Message.Validation = []Validation{{Rules: r}} }
	}
	good := Rule{"payload.total > 0", "positive"}
	for want, change := range map[string]func(*Config){
		"": func(c *Config) {
			c.Sink.Routes = []Route{{[]string{"a", "b"}, "'x'"}, {[]string{"b", "c"}, "'y'"}, {nil, "event.topic"}} // the first one that has b holds
			c.Message.Validation = []Validation{{Types: []string{"A"}, Schema: &PayloadSchema{Inline: "{}"}, Rules: []Rule{good}}}
			c.Message.Transform = []Transformation{{nil, "payload"}, {[]string{"A"}, "payload"}}
		},
		"sink.routes are for sinks that have several destinations, and log is none; remove": func(c *Config) {
			c.Sink, c.Sink.Routes = Sink{Log: &LogSink{Payload: LogPayloadOmit}}, []Route{{nil, "'x'"}}
		},
		"sink.routes has 65 entries; keep at most 64": func(c *Config) {
			for range 65 {
				c.Sink.Routes = append(c.Sink.Routes, Route{nil, "'x'"})
			}
		},
		"sink.routes[0].to is missing; set it":                                        func(c *Config) { c.Sink.Routes = []Route{{nil, ""}} },
		"sink.routes[0].to has more than 4096 characters":                             func(c *Config) { c.Sink.Routes = []Route{{nil, strings.Repeat("a", 4097)}} },
		"sink.routes[1] is never used, because sink.routes[0] takes all topics; move": func(c *Config) { c.Sink.Routes = []Route{{nil, "'x'"}, {[]string{"a"}, "'y'"}} },
		"sink.routes[0].topics has 257 entries; list at most 256":                     func(c *Config) { c.Sink.Routes = []Route{{many(257), "'x'"}} },
		"sink.routes[0].topics[0] is missing; set it":                                 func(c *Config) { c.Sink.Routes = []Route{{[]string{""}, "'x'"}} },
		"message.validation has 65 entries; keep at most 64":                          func(c *Config) { c.Message.Validation = slices.Repeat([]Validation{{Rules: []Rule{good}}}, 65) },
		"message.validation[0] checks nothing; set schema or rules, or remove it":     func(c *Config) { c.Message.Validation = []Validation{{}} },
		"message.validation[0].types has 257 entries; list at most 256":               func(c *Config) { c.Message.Validation = []Validation{{Types: many(257), Rules: []Rule{good}}} },
		"message.validation[0].types[0] is missing":                                   func(c *Config) { c.Message.Validation = []Validation{{Types: []string{""}, Rules: []Rule{good}}} },
		"message.validation[0].schema is missing; set exactly one of its members":     schema(PayloadSchema{}),
		"message.validation[0].schema has file and inline; keep exactly one of them":  schema(PayloadSchema{Inline: "{}", File: "a"}),
		"message.validation[0].schema.inline has more than 262144 bytes; shorten it":  schema(PayloadSchema{Inline: strings.Repeat("a", 256<<10+1)}),
		"message.validation[0].schema.registry.subject is missing":                    schema(PayloadSchema{Registry: &RegistrySchema{}}),
		"message.validation[0].schema.registry.version is -1; set it to 1 or more":    schema(PayloadSchema{Registry: &RegistrySchema{"a", -1}}),
		"message.schemaRegistry is missing, and message.validation[0].schema.registry needs": func(c *Config) {
			c.Message.SchemaRegistry = nil
			schema(PayloadSchema{Registry: &RegistrySchema{"a", 0}})(c)
		},
		"message.validation[0].rules has 33 entries; keep at most 32":          rule(slices.Repeat([]Rule{good}, 33)...),
		"message.validation[0].rules[0].rule is missing":                       rule(Rule{"", "a"}),
		"message.validation[0].rules[0].message is missing":                    rule(Rule{"a", ""}),
		"message.validation[0].rules[0].message has more than 1024 characters": rule(Rule{"a", strings.Repeat("a", 1025)}),
		"message.transform has 65 entries; keep at most 64":                    func(c *Config) { c.Message.Transform = slices.Repeat([]Transformation{{nil, "payload"}}, 65) },
		"message.transform[0].payload is missing; set it":                      func(c *Config) { c.Message.Transform = []Transformation{{}} },
		"message.transform[0].types[0] has more than 255 characters; shorten it": func(c *Config) {
			c.Message.Transform = []Transformation{{[]string{strings.Repeat("a", 256)}, "payload"}}
		},
	} {
		c, err := load(t, strings.Replace(minimal, "{log: {}}", "{kafka: {brokers: ['kafka.example:9092']}}", 1))
		need.OK(t, err)
		c.Message.SchemaRegistry = &SchemaRegistry{URL: "http://registry.example"}
		c.Message.SchemaRegistry.ApplyDefaults()
		change(&c)
		for _, err := range []error{c.Validate(), c.ValidatePipeline()} {
			switch {
			case want == "" && err != nil:
				t.Error(err)
			case want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)):
				t.Errorf("error %v\nwant %s", err, want)
			}
		}
	}
}

func TestRoutesOfClouds(t *testing.T) {
	for _, sink := range []string{
		"sqs: {queueURL: 'https://sqs.eu-west-1.amazonaws.com/123456789012/orders'}",
		"sns: {topicARN: 'arn:aws:sns:eu-west-1:123456789012:orders'}",
		"pubSub: {project: shop-production}",
		"serviceBus: {namespace: shop.servicebus.windows.net}",
	} {
		c, err := load(t, strings.Replace(minimal, "{log: {}}", "{"+sink+"}", 1))
		need.OK(t, err)
		c.Sink.Routes = []Route{{nil, "event.topic"}}
		if err := c.Validate(); err != nil {
			t.Errorf("%s: %v", sink, err)
		}
	}
}

func TestRateLimitsAreValidated(t *testing.T) {
	c, err := load(t, minimal+"\ndelivery: {rateLimit: {events: 500}, topicRateLimits: [{topic: orders, events: 5, period: 1m}, {topic: returns, events: 5}]}\n")
	need.OK(t, err)
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
