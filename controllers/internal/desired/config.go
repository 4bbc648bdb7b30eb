package desired

import (
	"fmt"
	"slices"

	"sigs.k8s.io/yaml"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

// DispatcherName is what the dispatchers call themselves in logs, metrics and status.
func DispatcherName(obd *v1alpha1.OutboxDispatcher) string { return obd.Namespace + "/" + obd.Name }

// Config is the file that the dispatchers load, without what they fill in by themselves. The state is not
// in it: it has a file of its own, which pods read again.
func Config(obd *v1alpha1.OutboxDispatcher) config.Config {
	return withoutDefaults(func() config.Config { return whole(obd) })
}

func whole(obd *v1alpha1.OutboxDispatcher) config.Config {
	c, _ := withRefs(obd)
	return c
}

// withRefs is the whole file, and the keys whose files it names.
func withRefs(obd *v1alpha1.OutboxDispatcher) (config.Config, []Ref) {
	spec := &obd.Spec
	database, target, registry, told := &mounts{dir: "database"}, &mounts{dir: "sink"}, &mounts{dir: "registry"}, &mounts{dir: "notify"}
	db := spec.Database
	if db == nil { // its Outbox is not there
		db = &v1alpha1.OutboxSpec{}
	}
	c := config.Config{
		Name:              DispatcherName(obd),
		Namespace:         spec.Namespace,
		Topics:            slices.Sorted(slices.Values(spec.Topics)), // a set: its order must not roll pods
		Database:          database.database(databaseField(obd), db),
		Lease:             config.Duration(spec.Lease.Duration),
		PollInterval:      config.Duration(spec.PollInterval.Duration),
		BatchSize:         int(spec.BatchSize),
		Concurrency:       int(spec.Concurrency),
		MaxInFlightBytes:  spec.MaxInFlightBytes,
		MaxAttempts:       int(spec.MaxAttempts),
		Backoff:           backoff(spec.Backoff),
		Ordering:          config.Ordering(spec.Ordering),
		OnDead:            config.OnDead(spec.OnDead),
		DeadLetters:       told.deadLetters(spec.DeadLetters),
		Retention:         retention(db.Retention, spec.OutboxRef != nil),
		WakeUp:            config.WakeUp(spec.WakeUp),
		DeliveryTimeout:   config.Duration(spec.DeliveryTimeout.Duration),
		GracePeriod:       config.Duration(spec.GracePeriod.Duration),
		StateFile:         stateFile,
		VerifiedTypesFile: typesFile(obd),
		Sink:              target.sink(spec.Sink),
		Routes:            routes(spec.Routes),
		Validation:        validation(spec.Validation),
		Transform:         transform(spec.Transform),
		Message:           message(spec.Message),
		SchemaRegistry:    registry.schemaRegistry(spec.SchemaRegistry),
		Server:            config.Server{Address: fmt.Sprintf(":%d", Port)},
		Log:               config.Log{Level: string(spec.Log.Level)},
	}
	if spec.Database == nil {
		database.refs = nil
	}
	return c, slices.Concat(database.refs, target.refs, registry.refs, told.refs)
}

// migrationConfigs are the files that a migration Job loads: of the login that migrates, and of the
// dispatchers', whose rights it grants. They have no more than a connection, and the first one the journal, which that
// login sets: so a change of it makes another Job, and rolls no pods.
func migrationConfigs(o Owner, db *v1alpha1.OutboxSpec) (migrates, dispatches config.Config) {
	file := func(login func(m *mounts, field string, d *v1alpha1.OutboxSpec) config.Database, j *v1alpha1.Journal) config.Config {
		return withoutDefaults(func() config.Config {
			return config.Config{Name: o.GetNamespace() + "/" + o.GetName(), Database: login(&mounts{dir: "database"}, "", db), Journal: journal(j)}
		})
	}
	return file((*mounts).migration, db.Journal), file((*mounts).database, nil)
}

func journal(j *v1alpha1.Journal) *config.Journal {
	if j == nil {
		return nil
	}
	enabled := j.Enabled != nil && *j.Enabled
	return &config.Journal{Enabled: &enabled, Retention: config.Duration(j.Retention.Duration)}
}

// retention is that of the dispatcher's own rows. Where an Outbox says it, it says the same to all of its
// dispatchers, and one of them sweeps for all.
func retention(r v1alpha1.Retention, outbox bool) config.Retention {
	c := config.Retention{DeadResolved: config.Duration(r.DeadResolved.Duration)}
	if r.Delivered != nil {
		delivered := config.Duration(r.Delivered.Duration)
		c.Delivered = &delivered
	}
	if r.DeadUnresolved != nil {
		c.DeadUnresolved = config.Duration(r.DeadUnresolved.Duration)
	}
	if outbox {
		c.Scope = config.ScopeOutbox
	}
	return c
}

func backoff(b v1alpha1.Backoff) config.Backoff {
	c := config.Backoff{Strategy: string(b.Strategy), Multiplier: b.Multiplier}
	if b.Base != nil {
		c.Base = config.Duration(b.Base.Duration)
	}
	if b.Max != nil {
		c.Max = config.Duration(b.Max.Duration)
	}
	if b.JitterPercent != nil {
		percent := int(*b.JitterPercent)
		c.JitterPercent = &percent
	}
	return c
}

func render(c config.Config) string {
	b, err := yaml.Marshal(c)
	if err != nil {
		panic(fmt.Sprintf("render the configuration: %v", err)) // plain data only
	}
	return string(b)
}
