package spec

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Validate reports all that is wrong with c after [Config.ApplyDefaults], joined, each with the
// field's path and the remedy. The bounds are those of the OutboxDispatcher resource.
// The error is nil when nothing is wrong.
func (c Config) Validate() error {
	var p problems
	p.length("name", c.Name, 253)
	p.length("namespace", c.Namespace, 255)
	p.when(len(c.Topics) > 256, "topics", "has %d entries; list at most 256, or none for all topics of the namespace", len(c.Topics))
	for i, topic := range c.Topics {
		field := fmt.Sprintf("topics[%d]", i)
		p.length(field, topic, 255)
		p.when(slices.Contains(c.Topics[:i], topic), field, "is %q a second time; remove one", topic)
	}
	c.Notify.validate(&p)
	c.Retention.validate(&p)
	c.Journal.validate(&p)
	c.Delivery.validate(&p)
	p.when(c.Delivery.Timeout < c.Sink.Timeout, "delivery.timeout", "is %[1]s, shorter than sink.timeout (%[2]s), which then never ends a delivery; raise delivery.timeout to %[2]s, or lower sink.timeout", c.Delivery.Timeout, c.Sink.Timeout)
	p.oneOf("state", string(c.State), string(Running), string(Paused))
	p.oneOf("log.level", string(c.Log.Level), "Debug", "Info", "Warn", "Error")
	_, port, err := net.SplitHostPort(c.Server.Address)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	p.when(err != nil, "server.address", "is %q; write it as host:port, such as 127.0.0.1:8080", c.Server.Address)
	c.Database.validate(&p)
	c.Sink.validate(&p)
	c.Sink.validateRoutes(&p)
	c.validateValidation(&p)
	c.validateTransform(&p)
	c.validateMessage(&p)
	if c.Message.SchemaRegistry != nil {
		c.Message.SchemaRegistry.validate(&p)
	}
	if k := c.Sink.Kafka; k != nil && k.Encoding != KafkaJSON {
		p.when(c.Message.SchemaRegistry == nil, "message.schemaRegistry", "is missing, and sink.kafka.encoding %s needs it; add it, or set encoding to JSON", k.Encoding)
	}
	return p.join()
}

func (d Delivery) validate(p *problems) {
	p.duration("delivery.lease", d.Lease, 3*time.Second, time.Hour)
	p.duration("delivery.pollInterval", d.PollInterval, 10*time.Millisecond, 20*time.Minute)
	p.when(3*d.PollInterval > d.Lease, "delivery.pollInterval", "must be at most a third of lease (%s), so that a lost lease is noticed in time; lower it to %s or raise lease to %s", d.Lease, d.Lease/3, 3*d.PollInterval)
	p.number("delivery.batchSize", int(d.BatchSize), 1, 10_000)
	p.when(d.Concurrency != Auto && (d.Concurrency < 1 || d.Concurrency > 1000), "delivery.concurrency", "is %d; set it to a number from 1 to 1000, or to Auto", int(d.Concurrency))
	p.number("delivery.maxConcurrency", int(d.MaxConcurrency), 1, 1000)
	p.when(d.MaxInFlightBytes < minInFlightBytes || d.MaxInFlightBytes > maxInFlightBytes, "delivery.maxInFlightBytes", "is %d; set it from %d (1 MiB) to %d (16 GiB)", d.MaxInFlightBytes, minInFlightBytes, int64(maxInFlightBytes))
	p.number("delivery.maxAttempts", int(d.MaxAttempts), 1, 1000)
	p.oneOf("delivery.ordering", string(d.Ordering), string(OrderingNone), string(OrderingKey))
	p.oneOf("delivery.fairness", string(d.Fairness), string(FairnessNone), string(FairnessTenant))
	p.when(d.Fairness == FairnessTenant && d.Ordering == OrderingKey, "delivery.fairness", "Tenant does not work with ordering Key, which decides itself what comes next; set one of them to None")
	p.oneOf("delivery.onDead", string(d.OnDead), string(OnDeadContinue), string(OnDeadBlock))
	p.when(d.OnDead == OnDeadBlock && d.Ordering != OrderingKey, "delivery.onDead", "Block belongs to ordering Key, because without it no event waits for another; set ordering to Key, or remove onDead")
	p.oneOf("delivery.wakeUp", string(d.WakeUp), string(WakeUpNone), string(WakeUpListen))
	p.duration("delivery.timeout", d.Timeout, time.Second, time.Hour)
	p.duration("delivery.gracePeriod", d.GracePeriod, time.Second, time.Hour)
	d.Backoff.validate(p)
	d.validateRates(p)
}

// The bounds of maxInFlightBytes. The lower one is the default limit of a payload.
const (
	minInFlightBytes = 1 << 20
	maxInFlightBytes = 16 << 30
)

// ValidateDatabase is Validate for what needs no more than the sections database and journal.
// It fails as [Config.Validate] does.
func (c Config) ValidateDatabase() error {
	var p problems
	c.Database.validate(&p)
	c.Journal.validate(&p)
	return p.join()
}

// literal is what package migrations takes: it stands in the text of functions.
const literal = pattern(`^[^'\\$[:cntrl:]]{1,255}$`)

// variable is the name of an environment variable. What else stands there may be a connection string, and is not shown.
const variable = pattern(`^[A-Za-z_][A-Za-z0-9_]{0,254}$`)

const schemaName = pattern(`^[a-z_][a-z0-9_]{0,62}$`)

func (d Database) validate(p *problems) {
	p.exactlyOne("database", map[string]bool{"dsn": d.DSN != "", "dsnFile": d.DSNFile != "", "dsnEnv": d.DSNEnv != "", "connection": d.Connection != nil})
	p.when(d.DSNEnv != "" && !variable.matches(d.DSNEnv), "database.dsnEnv", "is not the name of an environment variable; give one, such as DATABASE_URL, that holds the connection string")
	if d.Connection != nil {
		d.Connection.validate(p)
		p.when(d.Connection.PasswordFile == "" && d.ClientCertFile == "" && d.IAM == nil, "database.connection.passwordFile", "is missing; set it, or log in with iam or with clientCertFile and clientKeyFile")
	}
	d.IAM.validate(p, "database.iam")
	p.when(d.IAM != nil && (d.SSLMode == "Disable" || d.SSLMode == "Prefer"), "database.sslMode", "is %s, and the token of iam is for a connection with TLS; set it to VerifyFull with caFile, or to Require", d.SSLMode)
	p.when(d.IAM != nil && d.Connection != nil && d.SSLMode == "" && d.CAFile == "", "database.sslMode", "is missing, and the token of iam is for a connection with TLS; set it to Require, or name a caFile")
	p.when((d.ClientCertFile == "") != (d.ClientKeyFile == ""), "database", "has only one of clientCertFile and clientKeyFile; set both or neither")
	p.when(!schemaName.matches(d.Schema) || strings.HasPrefix(d.Schema, "pg_"), "database.schema", "is %q; use lower-case alphanumeric characters and underscores, at most 63, not starting with a digit or pg_", d.Schema)
	if m := d.M10; m != nil {
		for name, value := range map[string]string{"namespace": m.Namespace, "topic": m.Topic} {
			p.when(!literal.matches(value), "database.m10."+name, "is %.70q; give 1 to 255 characters without quotes, backslashes, dollar signs and control characters", value)
		}
		p.oneOf("database.m10.publish", string(m.Publish), string(M10Insert), string(M10Upsert))
	}
	p.when(d.Tenants != "" && d.Tenants != TenantsIndexed, "database.tenants", "is %q; set it to Indexed, or remove it", d.Tenants)
	if d.Overview != nil {
		p.when(!literal.matches(d.Overview.Namespace), "database.overview.namespace", "is %.70q; give 1 to 255 characters without quotes, backslashes, dollar signs and control characters", d.Overview.Namespace)
	}
	if d.SSLMode != "" {
		p.oneOf("database.sslMode", d.SSLMode, "Disable", "Prefer", "Require", "VerifyCA", "VerifyFull")
		verifies := strings.HasPrefix(d.SSLMode, "Verify")
		p.when(verifies && d.CAFile == "", "database.caFile", "is missing, and sslMode %s needs it; name the file with the certificates to verify with", d.SSLMode)
		p.when(!verifies && d.CAFile != "", "database.sslMode", "is %s, which does not verify with caFile; set it to VerifyFull or VerifyCA, or remove caFile", d.SSLMode)
	}
}

func (i *IAM) validate(p *problems, field string) {
	if i == nil {
		return
	}
	p.oneOf(field+".provider", i.Provider, IAMAWS, IAMGoogle, IAMAzure)
	p.when(i.Region != "" && i.Provider != IAMAWS, field+".region", "belongs to provider AWS; remove it")
	p.when(i.Region != "" && !awsRegion.matches(i.Region), field+".region", "is %q; write a region such as eu-west-1", i.Region)
}

func (c *Connection) validate(p *problems) {
	p.valueOrFile("database.connection.host", c.Host, c.HostFile)
	p.valueOrFile("database.connection.database", c.Database, c.DatabaseFile)
	p.valueOrFile("database.connection.user", c.User, c.UserFile)
	p.when(c.Port != 0 && c.PortFile != "", "database.connection", "has port and portFile; keep one of them")
	p.number("database.connection.port", c.Port, 0, 65_535)
}

const multiplier = pattern(`^([1-9](\.[0-9]+)?|10(\.0+)?)$`)

func (b Backoff) validate(p *problems) {
	p.oneOf("delivery.backoff.strategy", string(b.Strategy), string(BackoffExponential), string(BackoffMultiplier), string(BackoffPowerOfTwo), string(BackoffLinear))
	if b.Strategy == BackoffPowerOfTwo {
		p.when(b.Base != 0 || b.Max != 0, "delivery.backoff.strategy", "PowerOfTwo has fixed delays; remove base and max, or choose Exponential")
	} else {
		p.duration("delivery.backoff.base", b.Base, time.Millisecond, 24*time.Hour)
		p.duration("delivery.backoff.max", b.Max, time.Millisecond, 24*time.Hour)
		p.when(b.Base > b.Max, "delivery.backoff.base", "is %s, more than max (%s); lower base or raise max", b.Base, b.Max)
	}
	if b.Strategy == BackoffMultiplier {
		p.when(!multiplier.matches(b.Multiplier), "delivery.backoff.multiplier", "is %q; write a decimal from \"1\" to \"10\" in quotes, such as \"1.5\"", b.Multiplier)
		if b.JitterPercent != nil {
			p.number("delivery.backoff.jitterPercent", int(*b.JitterPercent), 0, 100)
		}
	} else {
		p.when(b.Multiplier != "" || b.JitterPercent != nil, "delivery.backoff.strategy", "is %s; multiplier and jitterPercent belong to strategy Multiplier: set it, or remove them", b.Strategy)
	}
}

// pattern is a regular expression. It is compiled when it is used: a process needs few of them, and one
// that counts to 256 takes a third of a megabyte.
type pattern string

func (p pattern) matches(text string) bool { return regexp.MustCompile(string(p)).MatchString(text) }

// problems collects what is wrong.
type problems struct{ errs []error }

func (p *problems) when(wrong bool, field, format string, args ...any) {
	if wrong {
		p.errs = append(p.errs, fmt.Errorf("%s %s", field, fmt.Sprintf(format, args...)))
	}
}

func (p *problems) required(field, value string) {
	p.when(value == "", field, "is missing; set it")
}

// valueOrFile wants a field as it is or in a file.
func (p *problems) valueOrFile(field, value, file string) {
	p.when(value == "" && file == "", field, "is missing; set it, or name its file in %sFile", field[strings.LastIndexByte(field, '.')+1:])
	p.when(value != "" && file != "", field, "is set, and so is %sFile; keep one of them", field[strings.LastIndexByte(field, '.')+1:])
}

func (p *problems) length(field, value string, limit int) {
	p.required(field, value)
	p.when(utf8.RuneCountInString(value) > limit, field, "has more than %d characters; shorten it", limit)
}

func (p *problems) number(field string, value, least, most int) {
	p.when(value < least || value > most, field, "is %d; set it from %d to %d", value, least, most)
}

func (p *problems) duration(field string, value Duration, least, most time.Duration) {
	p.when(value.D() < least || value.D() > most, field, "is %s; set it from %s to %s", value, Duration(least), Duration(most))
}

func (p *problems) oneOf(field, value string, choices ...string) {
	p.when(!slices.Contains(choices, value), field, "is %q; choose one of %s", value, strings.Join(choices, ", "))
}

func (p *problems) exactlyOne(field string, members map[string]bool) {
	all := slices.Sorted(maps.Keys(members))
	set := slices.DeleteFunc(slices.Clone(all), func(name string) bool { return !members[name] })
	p.when(len(set) == 0, field, "is missing; set exactly one of its members %s", strings.Join(all, ", "))
	p.when(len(set) > 1, field, "has %s; keep exactly one of them", strings.Join(set, " and "))
}

func (p *problems) join() error { return errors.Join(p.errs...) }
