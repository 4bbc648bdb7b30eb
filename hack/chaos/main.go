// Chaos is the proof that nothing is lost: producers, a consumer and dispatchers as real processes on a
// real PostgreSQL, a seeded schedule of faults, and a ledger that decides.
//
//	go run ./hack/chaos -for 30m -seed 7                   one long run
//	go run ./hack/chaos -for 40s -seeds 20                 twenty short ones, one after the other
//	go run ./hack/chaos -for 40s -faults veto,unreadable   some kinds of faults alone
//	go run ./hack/chaos -for 30m -alerts                   next to a Prometheus with the project's alerts
//	go run ./hack/chaos -for 60s -rate 30 -copies 3        copied to three destinations, of which one is down half of the time
//
// Faults end, stop and freeze processes, cut connections, crash the database, and have the consumer refuse,
// hang, become unreachable, leave requests without a response, or respond with 5xx for long, in part or to one tenant. More
// topics than there are calls are slow. A standby that lags takes over, and the database's clock jumps. A dispatcher with all defaults
// is killed again and again, statement_timeout is short, a trigger is slow or refuses acks, and calls of 3 MiB hang. Rows are odd, too: they cannot be
// decoded, are larger than the buffers of a socket while their reader is frozen, or may not be claimed or marked dead; and dead ones
// are replayed while all this continues. schedule.go has the list.
//
// The ledger knows a claim of a row by its lease number. It finds what is lost, what was delivered without a
// commit or twice without a cause, illegal transitions, tokens that fall, are published twice or belong to two
// claims, leases acked twice, budgets overspent, keys out of order, events that are dead of an outage or next to an
// odd one, withdrawals that are not so, dead events without their record, and others that stood still next to an odd row. The product's own journal
// is on, and `dispatcher verify` must find no difference in the end. A recovery that takes longer than is promised
// is reported as SLOW, and fails the run too. How long the events waited that no fault hit is printed, and fails it beyond
// a minute.
//
// With -alerts the faults are those that leave the destination alone, which takes every event then, and no alert may fire, but those that are of
// what the run does: events that cannot be decoded become dead, and it refuses what dispatchers write.
//
// With -copies the dispatchers copy the shop's events, and each destination has one of its own that delivers the copies. Each committed event has one copy
// in each, made in the transaction that delivers it; and the copies of a key are delivered in the order of their originals. No topic is slow then.
//
// A failover forgets what was committed while the standby lagged: an event is lost by right if that takes its row too. The
// clock of the database is a library for LD_PRELOAD; without a C compiler it does not jump.
//
// The schedule and the mode follow from the seed, so a run that failed can be played again; what the
// processes make of it differs a little each time. It stops by itself and leaves nothing behind but, when
// it failed, the logs and journals in the directory that it names.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// roleVariable makes this program one of its own children.
const roleVariable = "OUTBOX_CHAOS_ROLE"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	switch os.Getenv(roleVariable) {
	case "consumer":
		err = consume(ctx, os.Args[1:])
	case "producer":
		err = produce(ctx, os.Args[1:])
	default:
		err = chaos(ctx, os.Args[1:])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(1)
	}
}

// options are what a run is made of. All but verbose follow from the command.
type options struct {
	seed              uint64
	times                           // of the schedule; recovery is judged unless they are crowded
	dispatchers, rate int           // rate is in transactions a second, each of 3 events on average
	work              time.Duration // that the consumer takes over an event
	ordered, deleted  bool
	paced             bool // concurrency Auto everywhere, a rate, and without order fairness between tenants
	copies            int  // to how many destinations
	journal           bool // the product's own, which is verified in the end
	alerts            bool // that fire are a failure
	kinds             []kind
	verbose           bool
	binaries          string
}

func defaults() options {
	return options{
		times:       times{total: 40 * time.Second, lease: 3 * time.Second, poll: 500 * time.Millisecond, timeout: sinkTimeout},
		dispatchers: 3, rate: 100, work: 60 * time.Millisecond, journal: true, kinds: slices.Concat(foreground, background),
	}
}

// mode names the options that change what the dispatchers do.
func (o options) mode() string {
	return fmt.Sprintf("seed %d, ordering %s, rows %s, pace %s", o.seed, o.ordering(), o.rows(), o.pace())
}

// command plays the run again.
func (o options) command() string {
	return fmt.Sprintf("go run ./hack/chaos -seed %d -for %s -lease %s -poll %s -dispatchers %d -rate %d -copies %d -ordering %s -rows %s -pace %s -journal=%t -alerts=%t -faults %s",
		o.seed, o.total, o.lease, o.poll, o.dispatchers, o.rate, o.copies, o.ordering(), o.rows(), o.pace(), o.journal, o.alerts, join(o.kinds))
}

func (o options) ordering() string { return map[bool]string{false: "None", true: "Key"}[o.ordered] }
func (o options) rows() string     { return map[bool]string{false: "kept", true: "deleted"}[o.deleted] }
func (o options) pace() string     { return map[bool]string{false: "mixed", true: "found"}[o.paced] }

// limit is how many deliveries may begin in a second when the pace is found: more than what the producers add, so
// that it binds after an outage.
func (o options) limit() int { return 5 * o.rate }

func join(kinds []kind) string {
	var names []string
	for _, k := range kinds {
		names = append(names, string(k))
	}
	return strings.Join(names, ",")
}

// chaos reads the command and does as many runs as it says.
func chaos(ctx context.Context, args []string) error {
	o := defaults()
	o.verbose = true
	flags := flag.NewFlagSet("chaos", flag.ExitOnError)
	flags.Uint64Var(&o.seed, "seed", rand.Uint64N(1_000_000), "what the schedule and the mode are drawn from")
	flags.DurationVar(&o.total, "for", o.total, "how long producers and faults continue")
	flags.DurationVar(&o.lease, "lease", o.lease, "the dispatchers' lease")
	flags.DurationVar(&o.poll, "poll", o.poll, "the dispatchers' poll interval")
	flags.IntVar(&o.dispatchers, "dispatchers", o.dispatchers, "how many dispatchers")
	flags.IntVar(&o.rate, "rate", o.rate, "transactions a second, of 3 events each on average")
	flags.IntVar(&o.copies, "copies", 0, "to how many destinations the dispatchers copy, at most 3; the third is down half of the time")
	seeds := flags.Int("seeds", 1, "how many runs, each with the next seed")
	ordering := flags.String("ordering", "", "None or Key (default: drawn)")
	rows := flags.String("rows", "", "kept or deleted at ack (default: drawn)")
	pace := flags.String("pace", "", "mixed: concurrency Auto in half of the dispatchers; or found: in all, with a rate limit, and without order tenants in turn (default: drawn)")
	flags.BoolVar(&o.journal, "journal", o.journal, "turn the journal on, and compare it with the rows in the end")
	flags.BoolVar(&o.alerts, "alerts", false, "evaluate the project's alerts in a Prometheus; none may fire")
	faults := flags.String("faults", "", "the kinds of faults (default: all, and with -alerts those that leave the destination alone)")
	_ = flags.Parse(args) // it exits
	if err := o.choose(*faults); err != nil {
		return err
	}
	binaries, err := os.MkdirTemp("", "outbox-chaos-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(binaries) }()
	o.binaries = binaries
	if err := build(ctx, binaries, o.kinds); err != nil {
		return err
	}
	var failed []string
	for range *seeds {
		draw := rand.New(rand.NewPCG(o.seed, 2))
		o.ordered, o.deleted, o.paced = draw.IntN(2) == 0, draw.IntN(2) == 0, draw.IntN(2) == 0
		if *ordering != "" {
			o.ordered = *ordering == "Key"
		}
		if *rows != "" {
			o.deleted = *rows == "deleted"
		}
		if *pace != "" {
			o.paced = *pace == "found"
		}
		r, err := run(ctx, o, os.Stdout)
		if err != nil {
			return err
		}
		r.print(os.Stdout)
		if r.failed() {
			failed = append(failed, o.mode())
		}
		o.seed++
	}
	if len(failed) > 0 {
		return fmt.Errorf("%d of %d runs failed: %s", len(failed), *seeds, strings.Join(failed, "; "))
	}
	fmt.Printf("\nAll %d runs passed.\n", *seeds)
	return nil
}

// choose takes the kinds of faults that -faults names, or all that the run may have. It refuses what is not there, of -copies too.
func (o *options) choose(faults string) error {
	if faults == "" {
		faults = join(slices.DeleteFunc(o.kinds, func(k kind) bool { return o.alerts && slices.Contains(ofDestination, k) }))
	}
	if o.copies < 0 || o.copies > len(destinations) {
		return fmt.Errorf("-copies: %d is not from 0 to %d", o.copies, len(destinations))
	}
	o.kinds = nil
	for name := range strings.SplitSeq(faults, ",") {
		if !slices.Contains(slices.Concat(foreground, background), kind(name)) {
			return fmt.Errorf("-faults: %q is none; choose from %s", name, join(defaults().kinds))
		}
		o.kinds = append(o.kinds, kind(name))
	}
	return nil
}

// build makes the dispatcher and, for that fault, the one with the wrong clock.
func build(ctx context.Context, dir string, kinds []kind) error {
	err := buildDispatcher(ctx, filepath.Join(dir, "dispatcher"))
	if err == nil && slices.Contains(kinds, jump) {
		err = buildServerClock(ctx, dir)
	}
	if err != nil || !slices.Contains(kinds, clock) {
		return err
	}
	return buildWrongClock(ctx, dir, filepath.Join(dir, "wrong-clock"))
}

// result is a run that is over.
type result struct {
	options    options
	dir        string
	history    *history
	ledger     *ledger
	recoveries []recovery
	tardy      []recovery
}

func (r *result) failed() bool {
	return len(r.ledger.violations) > 0 || !r.options.crowded && len(r.tardy) > 0
}

// run plays one schedule and judges it. An error is a run that could not be played. The run's directory
// is removed unless it failed.
func run(ctx context.Context, o options, out io.Writer) (r *result, err error) {
	dir, err := os.MkdirTemp("", "outbox-chaos-run-")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err == nil && !r.failed() || ctx.Err() != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	fmt.Fprintf(out, "\n%s\n", o.mode())
	w, err := newWorld(ctx, o, dir, out)
	defer func() { err = errors.Join(err, w.close()) }()
	if err != nil {
		return nil, fmt.Errorf("set the world up in %s: %w", dir, err)
	}
	h, err := w.run(ctx)
	if err != nil {
		return nil, fmt.Errorf("a run in %s: %w", dir, err)
	}
	r = &result{options: o, dir: dir, history: h, ledger: balance(h), recoveries: recoveries(h, o.times)}
	r.tardy = tardy(h, r.recoveries, o.times)
	return r, nil
}

// run lets producers and faults have their time, waits until all is delivered, and stops everything in
// order.
func (w *world) run(ctx context.Context) (*history, error) {
	stalls, err := appendTo(filepath.Join(w.dir, "stalls"))
	if err != nil {
		return nil, err
	}
	defer stalls.Close()
	watching, stopWatching := context.WithCancel(ctx)
	defer stopWatching()
	go func() { _ = noteStalls(watching, stalls) }() // what is missing there explains nothing
	plan := schedule(rand.New(rand.NewPCG(w.seed, 3)), w.times, len(w.slots), w.kinds)
	for range 2 {
		p, err := w.startProducer("-rate", fmt.Sprint(w.rate/2))
		if err != nil {
			return nil, err
		}
		w.writers = append(w.writers, p)
	}
	began := time.Now()
	up := w.takeDown(ctx)
	w.play(ctx, plan)
	sleep(ctx, time.Until(began.Add(w.total)))
	up()
	for _, p := range w.writers {
		if err := p.stop(30 * time.Second); err != nil {
			w.fail("%v", err)
		}
	}
	ended := time.Now()
	if ctx.Err() != nil {
		return nil, errors.New("interrupted")
	}
	if err := w.settle(ctx); err != nil {
		w.fail("%v", err)
	}
	over := time.Now()
	if w.alerts {
		w.judgeAlerts(ctx, began, over)
	}
	for _, s := range w.slots {
		w.stopOne(s.now)
	}
	if w.journal {
		w.verify(ctx)
	}
	h, err := w.load(ctx)
	if err == nil {
		h.began, h.ended, h.over = began, ended, over
	}
	return h, err
}

// settleWithin is how long what is left may stand still in the end, and how long an event may wait for its next try: a
// few leases, the longest backoff, and the longest wait between two half-open probes of a topic.
const settleWithin = time.Minute
