package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// stuckType is the event type of rows to whose requests the consumer does not respond, and stuckBytes their size.
const (
	stuckType  = "OrderStuck"
	stuckBytes = 3 << 20
)

// defaultLease of a dispatcher whose file names none.
const defaultLease = 30 * time.Second

// loopCrashes has one more dispatcher, with all defaults but the backoff, that is killed again and again. The fault ends
// with the last of its leases.
func (w *world) loopCrashes(ctx context.Context, f fault) error {
	for range 5 + f.pick%4 {
		d, err := w.startDispatcherWith(ctx, f.pick/4%(w.copies+1), "dispatcher", "", func(delivery map[string]any) {
			for _, name := range []string{"lease", "pollInterval", "batchSize", "concurrency", "maxConcurrency", "maxAttempts", "gracePeriod"} {
				delete(delivery, name)
			}
		})
		if err != nil {
			return err
		}
		end := w.begin(f.kind, d.worker, "%s, with all defaults", d.name)
		sleep(ctx, time.Second+time.Duration(f.pick%1500)*time.Millisecond)
		d.end((*process).kill)
		time.AfterFunc(defaultLease+w.poll, end)
	}
	sleep(ctx, defaultLease+w.poll)
	return nil
}

// hinder has a trigger do something with each row that a dispatcher changes, for a while: take 4 ms, under a
// statement_timeout of 600 ms, or refuse the ack of one event in three.
func (w *world) hinder(ctx context.Context, f fault) error {
	user := w.shop.Dispatcher.User
	again := fmt.Sprintf(`select pg_terminate_backend(pid) from pg_stat_activity where usename = '%s'`, user)
	begin := []string{"insert into chaos.hindered values ('" + string(f.kind) + "')"}
	end := []string{"delete from chaos.hindered where how = '" + string(f.kind) + "'"}
	if f.kind == limited {
		begin = append(begin, fmt.Sprintf("alter role %s set statement_timeout = '600ms'", user), again)
		end = append(end, fmt.Sprintf("alter role %s reset statement_timeout", user), again)
	}
	defer w.begin(f.kind, uuid.Nil, "for %s", f.lasts)()
	err := w.try(ctx, begin)
	sleep(ctx, f.lasts)
	err = errors.Join(err, w.try(context.WithoutCancel(ctx), end))
	sleep(ctx, w.lease) // outcomes that wait are written one by one, and behind them those that come
	return err
}

// try runs statements of the administrator, for as long as the database is unreachable.
func (w *world) try(ctx context.Context, statements []string) error {
	for _, sql := range statements {
		for {
			_, err := w.admin.Exec(ctx, sql)
			if err == nil {
				break
			}
			if unlessDisconnected(err) != nil || !sleep(ctx, 100*time.Millisecond) {
				return err
			}
		}
	}
	return nil
}

// addStuck commits rows of 3 MiB to whose requests the consumer does not respond for a while: more than a dispatcher has
// calls.
func (w *world) addStuck(ctx context.Context, f fault) error {
	rows := newOdds(20, stuckType)
	for i := range rows {
		rows[i].bytes = stuckBytes
	}
	url := "http://" + w.address
	if err := instruct(ctx, url, "stuck=1"); err != nil {
		return nil // a fault of the consumer is under way
	}
	err := w.showOdd(ctx, f, rows, "%d rows of %d MiB for %s", len(rows), stuckBytes>>20, f.lasts)
	_ = instruct(context.WithoutCancel(ctx), url, "stuck=0") // a new consumer responds anyway
	return err
}

// slowTopics is more than three dispatchers have calls.
const slowTopics = 70

// addSlow commits rows of many topics that take the consumer long.
func (w *world) addSlow(ctx context.Context, f fault) error {
	rows := newOdds(3*slowTopics, "OrderSlow")
	for i := range rows {
		rows[i].topic = fmt.Sprint(slowTopic, i%slowTopics)
	}
	return w.showOdd(ctx, f, rows, "%d rows in %d topics take %s each, for %s", len(rows), slowTopics, slowWork, f.lasts)
}
