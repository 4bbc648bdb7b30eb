// Package kafkasink produces events to Apache Kafka as CloudEvents 1.0, in the binary or structured
// mode of the CloudEvents Kafka binding. Package cloudevent says which attributes they carry.
//
// dispatcher/sink/kafka.md has the settings, guarantees, outcomes and how to secure it.
package kafkasink

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/base"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/encoding"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/files"
)

const (
	// batchSize is what one Deliver takes: enough to fill the batches of many partitions.
	batchSize = 500
	// linger lets the records of one Deliver meet in a partition's batch. It is only waited for when
	// there are fewer than a batch. It is as long as handing them over takes: that a stream comes in batches is
	// the engine's part, which lets events gather.
	linger = time.Millisecond
	// connectTimeout bounds a connection with its TLS handshake, and a probe.
	connectTimeout = 10 * time.Second
)

type sink struct {
	base.Server
	topic    base.Place
	mode     spec.ContentMode
	timeout  time.Duration
	maxBytes int // of a batch, and so of a record
	// encoder makes values of payloads, by the schema of subject or else of the Kafka topic. nil: a
	// payload is the value.
	encoder *encoding.Encoder
	subject string
	options []kgo.Opt
	dial    dialer

	// shared takes all deliveries. alone takes one record at a time: one that was refused for its
	// batch's size, which may have been another's fault.
	shared, alone sessionHolder
	turn          chan struct{} // held by who uses alone
}

var _ dispatcher.Sink = (*sink)(nil)

// New returns a sink for cfg. route says a topic of an event, see [base.PlaceOf]. It fails as [base.Made] says. schemas is the registry for
// encoding Avro and Protobuf, nil for JSON.
func New(cfg spec.KafkaSink, schemas *spec.SchemaRegistry, route func(*dispatcher.Event) (string, error)) (dispatcher.Sink, error) {
	return base.Made(build(cfg, schemas, route))
}

func build(cfg spec.KafkaSink, schemas *spec.SchemaRegistry, route func(*dispatcher.Event) (string, error)) (*sink, error) {
	cfg.ApplyDefaults()
	s := &sink{
		mode: cfg.ContentMode, timeout: cfg.Timeout.D(), maxBytes: int(cfg.MaxMessageBytes),
		Server: base.Server{
			Peer: peer, Kind: "Kafka", At: strings.Join(cfg.Brokers, ", "), Doing: "producing to",
			Limit: min(cfg.Timeout.D(), connectTimeout), Explain: explainLogin,
		},
		topic: base.PlaceOf(route, cfg.Topic), subject: cfg.Subject,
		dial: files.Dialer(cfg.TLS, connectTimeout), turn: make(chan struct{}, 1),
	}
	if cfg.Encoding != spec.KafkaJSON {
		if schemas == nil {
			return nil, fmt.Errorf("kafka sink: encoding %s needs a schema registry; set schemaRegistry, or encoding to JSON", cfg.Encoding)
		}
		var err error
		if s.encoder, err = encoding.New(cfg.Encoding, *schemas); err != nil {
			return nil, err
		}
	}
	s.options = append(options(cfg), login(cfg.Auth)...)
	// What kgo finds wrong is found now. Nothing is dialled before the first use.
	ses, err := s.newSession()
	if err != nil {
		return nil, fmt.Errorf("kafka sink: %w", err)
	}
	ses.client.Close()
	return s, nil
}

func options(cfg spec.KafkaSink) []kgo.Opt {
	compression := map[spec.KafkaCompression]kgo.CompressionCodec{
		spec.CompressionNone: kgo.NoCompression(), spec.CompressionGzip: kgo.GzipCompression(), spec.CompressionSnappy: kgo.SnappyCompression(),
		spec.CompressionLZ4: kgo.Lz4Compression(), spec.CompressionZstd: kgo.ZstdCompression(),
	}[cfg.Compression]
	return []kgo.Opt{
		kgo.SeedBrokers(cfg.Brokers...),
		kgo.ClientID(cfg.ClientID),
		kgo.SoftwareNameAndVersion("outbox-dispatcher", cmp.Or(base.Version(), "unknown")),
		kgo.RequiredAcks(kgo.AllISRAcks()), // and idempotent, which is kgo's default
		// The records of a partition that lost its leader are given up even if one may have been written.
		kgo.AllowIdempotentProduceCancellation(),
		kgo.ProducerBatchCompression(compression),
		kgo.ProducerBatchMaxBytes(cfg.MaxMessageBytes),
		kgo.ProducerLinger(linger),
		kgo.ProduceRequestTimeout(min(cfg.Timeout.D(), 10*time.Second)),
		// The engine bounds what is in flight; Produce must never wait for room.
		kgo.MaxBufferedRecords(1 << 30),
		// A missing topic is an error soon. One that was just made may be unknown to some broker.
		kgo.MetadataMinAge(250 * time.Millisecond),
		kgo.UnknownTopicRetries(2),
		kgo.RetryBackoffFn(backoff),
		kgo.DisableClientMetrics(),
	}
}

// backoff is how long a client waits before it tries again what failed so often: a second at most, as long as
// the deliveries that wait for it look at the leaders. kgo's own grows to 5 s, which a broker that has recovered
// would be waited for.
func backoff(fails int) time.Duration {
	return min(leaderWait, 100*time.Millisecond<<min(max(fails, 0), 10))
}

// BatchSize is 500.
func (*sink) BatchSize() int { return batchSize }

// Deliver produces the whole batch at once, and returns a result for each record as the brokers confirm it.
// When ctx ends, or the timeout, what is not confirmed by then is never sent any more.
func (s *sink) Deliver(ctx context.Context, batch []*dispatcher.Event) []error {
	since := time.Now()
	record := func(e *dispatcher.Event) (*kgo.Record, error) { return s.record(ctx, since, e) }
	return base.Deliver("kafka", batch, record, func(records []*kgo.Record) []error {
		errs := s.produce(ctx, &s.shared, records)
		for i, err := range errs {
			if errors.Is(err, errBatchTooLarge) {
				errs[i] = s.produceAlone(ctx, records[i])
			}
		}
		return errs
	})
}

// produceAlone sends a record in a batch of its own: then what is said of the batch is said of it.
func (s *sink) produceAlone(ctx context.Context, r *kgo.Record) error {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return s.Interrupted(ctx)
	}
	err := s.produce(ctx, &s.alone, []*kgo.Record{unused(r)})[0]
	if errors.Is(err, errBatchTooLarge) {
		return dispatcher.Permanent(dispatcher.ReasonPermanentFailure, err)
	}
	return err
}

// produce sends the records in one session, and returns a result for each.
func (s *sink) produce(ctx context.Context, l *sessionHolder, records []*kgo.Record) []error {
	limited, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	if ctx.Err() != nil {
		return slices.Repeat([]error{s.Interrupted(ctx)}, len(records))
	}
	ses, err := l.session(s.newSession)
	if err != nil {
		return slices.Repeat([]error{s.Unreachable(ctx, err)}, len(records))
	}
	if err := ses.ready(ctx, min(s.timeout, connectTimeout)); err != nil {
		l.retire(ses) // its connection may hang
		return slices.Repeat([]error{s.Unreachable(ctx, err)}, len(records))
	}
	before := ses.sent.Load()
	errs := ses.produce(limited, records)
	if slices.ContainsFunc(errs, s.endsSession) {
		l.retire(ses)
	}
	unsent := ses.retired.Load() && ses.sent.Load() == before // in this order: see conn.Write
	for i, r := range records {
		errs[i] = s.outcome(ctx, ses, r, errs[i], unsent)
	}
	return errs
}

// Probe logs in to a broker on a connection of its own, and lists the cluster's brokers, and checks the
// topic if every event goes there. It also queries the schema registry, if that was unreachable.
func (s *sink) Probe(ctx context.Context) error {
	ses, err := s.newSession()
	if err == nil {
		defer s.shared.retire(ses)
		err = ses.ping(ctx, min(s.timeout, connectTimeout))
	}
	if err != nil {
		return s.Unreachable(ctx, err)
	}
	if s.topic.Only != "" {
		if err := s.probeTopic(ctx, ses); err != nil {
			return err
		}
	}
	if s.encoder != nil {
		return s.encoder.Probe(ctx)
	}
	return nil
}

// Close ends the connections. Nothing is in flight then: Deliver waits for its records.
func (s *sink) Close(ctx context.Context) error {
	closed := make(chan struct{})
	go func() {
		s.shared.close()
		s.alone.close()
		close(closed)
	}()
	select {
	case <-closed:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("kafka sink: closing the connections to %s was interrupted: %w", s.At, ctx.Err())
	}
}
