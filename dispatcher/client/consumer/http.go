package consumer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
)

// HTTP returns a handler for the requests of the http sink, in each contentMode. It reads the events, runs effect for each
// by [Consumer.Handle], and responds as the dispatcher understands:
//
//	response            when
//	------------------  ---------------------------------------------------------------------------------------
//	204                 every event is handled, now or before
//	400, 413, 422       the request holds no event of an outbox; is larger than Options.MaxBytes; effect's error is a
//	                    [Refused]: counted against the event alone. A batch comes again event by event
//	405                 it is not a POST
//	409                 [ErrOlderToken]: the dispatcher has given this delivery up
//	425, Retry-After 1  [ErrBusy], a deadlock or a serialization failure: the event comes again
//	503, Retry-After    effect's error is a [RetryAfter]
//	503                 the database is unreachable, or the time for the request ended
//	500                 any other error, and a panic
//
// Of a batch each event has a transaction of its own, and the response is the gravest of all. The events that were handled
// are duplicates when they come again. The body says only which event failed, and never why: the log does.
//
// Check who calls before it: a bearer token, mutual TLS, or the signature of Standard Webhooks.
func (c *Consumer[DB, Tx]) HTTP(db DB, effect func(ctx context.Context, tx Tx, e *Event) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			w.Header().Set("Allow", http.MethodPost)
			http.Error(w, "post events", http.StatusMethodNotAllowed)
			return
		}
		events, err := c.read(w, r)
		worst := responseTo(err)
		if err != nil {
			c.options.Logger.LogAttrs(r.Context(), slog.LevelError, "request refused", slog.String("consumer_id", c.options.ID), slog.Any("error", err))
			if worst.status == http.StatusUnprocessableEntity {
				worst.status = http.StatusBadRequest
			}
			worst.text = "the request holds no event of an outbox, or is too large"
		}
		for _, e := range events {
			got := responseTo(c.handleOne(r.Context(), db, e, effect))
			if got.status > worst.status || got.status == worst.status && got.after > worst.after {
				worst = got
				worst.text = fmt.Sprintf("event %s: %s; the consumer's log says why", e.ID, http.StatusText(got.status))
			}
		}
		worst.write(w)
	})
}

func (c *Consumer[DB, Tx]) read(w http.ResponseWriter, r *http.Request) ([]*Event, error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, c.options.MaxBytes))
	if err != nil {
		return nil, fmt.Errorf("read the request: %w; raise Options.MaxBytes if it is too small for a batch", err)
	}
	return FromHTTP(r.Header, body)
}

// handleOne makes an error of a panic, so that the other events of a batch are handled.
func (c *Consumer[DB, Tx]) handleOne(ctx context.Context, db DB, e *Event, effect func(context.Context, Tx, *Event) error) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			c.options.Logger.LogAttrs(ctx, slog.LevelError, "effect panicked; correct it", append(c.context(e),
				slog.Any("cause", cause), slog.String("stack", string(debug.Stack())))...)
			err = fmt.Errorf("event %s: the effect panicked", e.ID)
		}
	}()
	_, err = c.Handle(ctx, db, e, func(tx Tx) error { return effect(ctx, tx, e) })
	return err
}

// response is an HTTP response; a higher status is a graver one.
type response struct {
	status int
	after  time.Duration
	text   string
}

func responseTo(err error) response {
	var refused *Refused
	var later *pause
	var large *http.MaxBytesError
	switch {
	case err == nil:
		return response{status: http.StatusNoContent}
	case errors.As(err, &large):
		return response{status: http.StatusRequestEntityTooLarge}
	case errors.As(err, &later):
		return response{status: http.StatusServiceUnavailable, after: later.after}
	case errors.Is(err, ErrOlderToken):
		return response{status: http.StatusConflict}
	case errors.Is(err, ErrBusy), state(err) == "40001", state(err) == "40P01":
		return response{status: http.StatusTooEarly, after: time.Second}
	case errors.As(err, &refused):
		return response{status: http.StatusUnprocessableEntity}
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), unreachable(err):
		return response{status: http.StatusServiceUnavailable}
	default:
		return response{status: http.StatusInternalServerError}
	}
}

func (a response) write(w http.ResponseWriter) {
	if a.after > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(a.after.Seconds()))))
	}
	if a.status == http.StatusNoContent {
		w.WriteHeader(a.status)
		return
	}
	http.Error(w, a.text, a.status)
}

// storageIDs is the name space of ids that are not UUIDs: those of rows that were adopted.
var storageIDs = uuid.NewSHA1(uuid.NameSpaceURL, []byte("outbox.dev/storage"))

// storageAttributes are the attributes of a message in the format Storage, which has them in the payload's member metadata; nil
// for any other message.
func storageAttributes(headers map[string]string, body []byte) attributes {
	var payload struct {
		Metadata map[string]any `json:"metadata"`
	}
	if decodeJSON(body, &payload) != nil {
		return nil
	}
	text, ok := payload.Metadata["outbox_id"].(string)
	if !ok || text == "" {
		return nil
	}
	id, err := uuid.Parse(text)
	if err != nil {
		id = uuid.NewSHA1(storageIDs, []byte(text))
	}
	a := attributes{"id": id.String()}
	for name, value := range payload.Metadata {
		switch value.(type) {
		case string, json.Number, bool:
			a[attributeName(name)] = fmt.Sprint(value)
		}
	}
	delete(a, "sequencenumber")
	if number, ok := payload.Metadata["sequence_number"].(json.Number); ok {
		a["aggregatesequence"] = number.String()
	}
	for name, value := range headers {
		switch attributeName(name) {
		case "eventtype":
			a["type"] = value
		case "aggregateid", "headeraggregateid": // which is an attribute of a CloudEvent, too
			a["aggregateid"] = value
		}
	}
	return a
}

// Metrics are the metrics of RULE-010-041, with the label consumer_id. One serves all consumers of a process:
//
//	outbox_consumer_events_processed_total      deliveries, by result: success, failure
//	outbox_consumer_duplicates_skipped_total    deliveries of events that were handled before
//	outbox_consumer_processing_latency_seconds  how long a delivery took that ran its effect, or failed
//	outbox_consumer_retry_count                 how many deliveries came before this one (its attempt less one)
//
// A duplicate is in the second and fourth alone, an older delivery that was given up in the fourth alone.
type Metrics struct {
	processed      *prometheus.CounterVec
	duplicates     *prometheus.CounterVec
	latency, retry *prometheus.HistogramVec
}

// NewMetrics registers the metrics.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	const consumerID = "consumer_id"
	m := &Metrics{
		processed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "outbox_consumer_events_processed_total", Help: "Deliveries that ran their effect or failed, by result: success or failure.",
		}, []string{consumerID, "result"}),
		duplicates: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "outbox_consumer_duplicates_skipped_total", Help: "Deliveries of events that were handled before.",
		}, []string{consumerID}),
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "outbox_consumer_processing_latency_seconds", Help: "How long a delivery took that ran its effect, or failed.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300},
		}, []string{consumerID}),
		retry: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "outbox_consumer_retry_count", Help: "How many deliveries of the event came before this one.",
			Buckets: []float64{0, 1, 2, 3, 5, 8, 12, 19, 50, 100},
		}, []string{consumerID}),
	}
	registry.MustRegister(m.processed, m.duplicates, m.latency, m.retry)
	return m
}

// start makes the series of a consumer, at 0, so that the first event is an increase.
func (m *Metrics) start(id string) {
	if m == nil {
		return
	}
	for _, result := range []string{"success", "failure"} {
		m.processed.WithLabelValues(id, result)
	}
	m.duplicates.WithLabelValues(id)
}

func (m *Metrics) observe(id string, e *Event, outcome Outcome, took time.Duration) {
	if m == nil {
		return
	}
	m.retry.WithLabelValues(id).Observe(float64(max(0, e.Attempt-1)))
	switch outcome {
	case AlreadyHandled:
		m.duplicates.WithLabelValues(id).Inc()
	case Handled, Failed:
		result := "success"
		if outcome == Failed {
			result = "failure"
		}
		m.processed.WithLabelValues(id, result).Inc()
		m.latency.WithLabelValues(id).Observe(took.Seconds())
	}
}
