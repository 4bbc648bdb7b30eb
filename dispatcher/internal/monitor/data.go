package monitor

import (
	"context"
	"log/slog"
	"time"

	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// dataEvery is the shortest time between two queries of the outbox's data. The results change slowly: they cover minutes.
const dataEvery = 15 * time.Second

// NewData reads the state of the outbox's data (CONTRACT C-95).
func NewData(ctx context.Context, look func(context.Context) (dispatcher.Data, error), log *slog.Logger) *Latest[dispatcher.Data] {
	return newLatest(ctx, log.With("query", "data"), dataEvery, func(ctx context.Context) (*dispatcher.Data, error) {
		data, err := look(ctx)
		return &data, err
	})
}

// Data returns the reported part of the outbox's data.
func Data(d *dispatcher.Data) *status.Data {
	o := d.Orphans
	out := &status.Data{ObservedAt: d.ObservedAt, Unserved: o.Unserved.N, Abandoned: o.Abandoned.N, OrphansAtLeast: o.Unserved.Estimated || o.Abandoned.Estimated}
	for _, of := range d.Windows {
		w := status.Window{Window: of.Name(), Delivered: of.Delivered, Failed: of.Failed, Dead: of.Dead.N, DeadAtLeast: of.Dead.Estimated}
		if rate, known := of.SuccessRate(); known {
			w.SuccessRate = &rate
		}
		out.Windows = append(out.Windows, w)
	}
	for _, t := range o.Topics {
		out.OrphanTopics = append(out.OrphanTopics, status.OrphanTopic{Namespace: t.Namespace, Topic: t.Topic, Unserved: t.Unserved.N, Abandoned: t.Abandoned.N})
	}
	return out
}
