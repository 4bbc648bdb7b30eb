package desired

import (
	"fmt"
	"slices"

	"sigs.k8s.io/yaml"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/dispatcher/config"
)

// DispatcherName is what the dispatchers call themselves in logs, metrics and status.
func DispatcherName(obd *v1alpha1.OutboxDispatcher) string { return obd.Namespace + "/" + obd.Name }

// Config is the file that the dispatchers load.
func Config(obd *v1alpha1.OutboxDispatcher) config.Config {
	spec := &obd.Spec
	return config.Config{
		Name:           DispatcherName(obd),
		Namespace:      spec.Namespace,
		Topics:         slices.Sorted(slices.Values(spec.Topics)), // a set: its order must not roll pods
		Database:       database(spec.Database, spec.Database.Secret, "database"),
		Lease:          config.Duration(spec.Lease.Duration),
		PollInterval:   config.Duration(spec.PollInterval.Duration),
		BatchSize:      int(spec.BatchSize),
		Concurrency:    int(spec.Concurrency),
		MaxAttempts:    int(spec.MaxAttempts),
		Backoff:        backoff(spec.Backoff),
		Ordering:       config.Ordering(spec.Ordering),
		OnDead:         config.OnDead(spec.OnDead),
		Retention:      retention(spec.Retention),
		WakeUp:         config.WakeUp(spec.WakeUp),
		GracePeriod:    config.Duration(spec.GracePeriod.Duration),
		State:          config.State(spec.State),
		Sink:           sink(spec.Sink),
		Routes:         routes(spec.Routes),
		Validation:     validation(spec.Validation),
		Transform:      transform(spec.Transform),
		SchemaRegistry: schemaRegistry(spec.SchemaRegistry),
		Server:         config.Server{Address: fmt.Sprintf(":%d", Port)},
	}
}

// MigrationConfig is the file that the migration Job loads: the dispatchers', with the login that
// may migrate.
func MigrationConfig(obd *v1alpha1.OutboxDispatcher) config.Config {
	c := Config(obd)
	c.Routes, c.Validation, c.Transform = nil, nil, nil // which may be large
	if m := obd.Spec.Database.Migration; m != nil && m.Secret != nil {
		c.Database = database(obd.Spec.Database, *m.Secret, "migration")
	}
	return c
}

func database(d v1alpha1.Database, secret v1alpha1.DatabaseSecret, dir string) config.Database {
	c := config.Database{Schema: d.Schema}
	login := loginRefs(dir, "", secret)
	if secret.Keys == nil {
		c.DSNFile = login[0].File()
	} else {
		c.Connection = &config.Connection{
			HostFile:     login[0].File(),
			PortFile:     login[1].File(),
			DatabaseFile: login[2].File(),
			UserFile:     login[3].File(),
			PasswordFile: login[4].File(),
		}
	}
	if d.TLS != nil {
		c.SSLMode = d.TLS.Mode
		if d.TLS.CA != nil {
			c.CAFile = Ref{Path: pathDatabaseCA}.File()
		}
	}
	return c
}

func retention(r v1alpha1.Retention) (c config.Retention) {
	if r.Delivered != nil {
		delivered := config.Duration(r.Delivered.Duration)
		c.Delivered = &delivered
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
