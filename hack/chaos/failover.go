package main

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/hack/servers/postgres"
)

// failOver has a standby follow the primary no more, and take its place a while later. The primary is gone for good then,
// with what was committed meanwhile: events, claims, outcomes, heartbeats.
func (w *world) failOver(ctx context.Context, f fault) (err error) {
	standby, err := w.server.Standby(ctx, postgres.Options{})
	if err != nil {
		return err
	}
	defer w.begin(f.kind, uuid.Nil, "by %s", f.lasts)()
	if err := unfollow(ctx, standby); err != nil {
		return errors.Join(err, standby.Stop(context.WithoutCancel(ctx)))
	}
	sleep(ctx, f.lasts)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	old := w.server
	old.Kill()
	w.server = standby
	if err = standby.Promote(ctx); err == nil {
		err = standby.TakeOver(ctx, old)
	}
	return errors.Join(err, old.Stop(ctx))
}

// unfollow ends the replication into a standby.
func unfollow(ctx context.Context, standby *postgres.Server) error {
	conn, err := pgx.Connect(ctx, standby.DSN("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, `alter system set primary_conninfo = ''`); err != nil {
		return err
	}
	_, err = conn.Exec(ctx, `select pg_reload_conf()`)
	return err
}

// forgotten reports whether a failover took an event with it: it has no row, and was committed while the standby lagged,
// or, when its producer never learned the outcome, delivered then.
func (h *history) forgotten(e *event) bool {
	at := e.committedAt
	if at.IsZero() {
		at = e.arrived()
	}
	return len(e.moves) == 0 && h.overlapping(at, at.Add(forgets), func(f injected) bool { return f.kind == lag }) != ""
}
