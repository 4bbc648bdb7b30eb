package scenario

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Stage is where the story is played: a Kubernetes cluster, or plain processes.
type Stage interface {
	// Columns returns the output of `kubectl get`, or its counterpart, or an error when that fails.
	Columns(ctx context.Context) (string, error)
	// FreezeOne freezes one dispatcher. It returns an error when none runs.
	FreezeOne(ctx context.Context) (Frozen, error)
}

// Frozen is a dispatcher's process that is suspended until it is killed or resumed.
type Frozen struct {
	// Worker is its worker id.
	Worker uuid.UUID
	signal func(syscall.Signal) error
}

// Freeze freezes a process of this machine. It returns an error when the process does not exist.
func Freeze(pid int, worker uuid.UUID) (Frozen, error) {
	return freeze(worker, func(signal syscall.Signal) error { return syscall.Kill(pid, signal) })
}

func freeze(worker uuid.UUID, signal func(syscall.Signal) error) (Frozen, error) {
	return Frozen{worker, signal}, signal(syscall.SIGSTOP)
}

func (f Frozen) kill() error { return f.signal(syscall.SIGKILL) }

func (f Frozen) resume() error {
	if f.signal == nil {
		return nil // nothing was frozen
	}
	return f.signal(syscall.SIGCONT)
}

// Story is the main job: orders are produced, a dispatcher is killed half-way, and the rest of the
// dispatchers finish the work.
type Story struct {
	Stage Stage
	Shop  *Shop
	// AppDSN is the application's connection string, ConsumerURL where the consumer is reached from
	// here.
	AppDSN, ConsumerURL string
	Plan                Plan
	// Out gets what a person wants to see.
	Out io.Writer

	printed string // the last table, without its ages
}

// Play runs the story until every event is delivered or dead, and returns the ledger.
// It returns an error when a step fails or ctx ends first.
func (s *Story) Play(ctx context.Context) (*Ledger, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		produced *Produced
		err      error
	}
	done := make(chan result, 1)
	go func() {
		p, err := Produce(ctx, s.AppDSN, s.Plan)
		done <- result{p, err}
	}()

	kill, err := s.killHalfWay(ctx)
	if err != nil {
		return nil, err
	}
	r := <-done
	if r.err != nil {
		return nil, fmt.Errorf("the shop's service: %w", r.err)
	}
	if err := s.settle(ctx); err != nil {
		return nil, err
	}
	deliveries, err := Deliveries(ctx, s.ConsumerURL)
	if err != nil {
		return nil, err
	}
	return Balance(ctx, s.Shop.Admin, r.produced, deliveries, kill)
}

func (s *Story) killHalfWay(ctx context.Context) (*Kill, error) {
	err := s.watch(ctx, func() (bool, error) {
		n, err := count(ctx, s.ConsumerURL)
		return n >= s.Plan.Orders/3, err
	})
	if err != nil {
		return nil, fmt.Errorf("wait for a third of the events: %w", err)
	}
	kill := &Kill{Held: map[uuid.UUID]bool{}}
	// The killed dispatcher must hold events: one that holds none is resumed, and another try follows.
	err = Until(ctx, "a dispatcher that holds events", func() (bool, string) {
		frozen, err := s.Stage.FreezeOne(ctx)
		if err == nil {
			err = s.held(ctx, frozen.Worker, kill.Held)
		}
		if err != nil || len(kill.Held) == 0 {
			return false, fmt.Sprint("it holds nothing ", errors.Join(err, frozen.resume()))
		}
		kill.At = time.Now()
		err = frozen.kill()
		return err == nil, fmt.Sprint(err)
	})
	if err != nil {
		return nil, fmt.Errorf("kill a dispatcher: %w", err)
	}
	fmt.Fprintf(s.Out, "\n  ✝ one dispatcher was killed with SIGKILL while it held %d events\n\n", len(kill.Held))
	return kill, nil
}

func (s *Story) held(ctx context.Context, worker uuid.UUID, into map[uuid.UUID]bool) error {
	conn, err := pgx.Connect(ctx, s.Shop.Admin)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	rows, err := conn.Query(ctx, "select id::text from outbox.outbox_events where live and locked_by = $1", worker.String())
	if err != nil {
		return err
	}
	var id string
	_, err = pgx.ForEachRow(rows, []any{&id}, func() error {
		into[uuid.MustParse(id)] = true
		return nil
	})
	return err
}

// settle waits until no live row is left, and the columns say so: they are a few seconds behind.
func (s *Story) settle(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, s.Shop.Admin)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return s.watch(ctx, func() (bool, error) {
		var live bool
		err := conn.QueryRow(ctx, "select exists (select from outbox.outbox_events where live)").Scan(&live)
		return !live && pending(s.printed) == "0", err
	})
}

// pending is what the table says in the column of that name.
func pending(table string) string {
	lines := strings.Split(table, "\n")
	at := slices.Index(strings.Fields(lines[0]), "PENDING")
	if at < 0 || len(lines) < 2 || len(strings.Fields(lines[1])) <= at {
		return ""
	}
	return strings.Fields(lines[1])[at]
}

// watch prints the columns whenever they change, until done.
func (s *Story) watch(ctx context.Context, done func() (bool, error)) error {
	for {
		if now, err := s.Stage.Columns(ctx); err == nil && ages.ReplaceAllString(now, "") != s.printed {
			fmt.Fprint(s.Out, indent(now, s.printed == ""))
			s.printed = ages.ReplaceAllString(now, "")
		}
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// ages are left out when two tables are compared: they change all the time.
var ages = regexp.MustCompile(`\b(\d+[smhd])+ *`)

// indent shifts a table to the right, with or without its header.
func indent(table string, header bool) string {
	lines := strings.Split(strings.TrimRight(table, "\n"), "\n")
	if !header && len(lines) > 1 {
		lines = lines[1:]
	}
	return "  " + strings.Join(lines, "\n  ") + "\n"
}

// Deliveries reads a consumer's list. It returns an error when the consumer is unreachable or does not respond with 200.
func Deliveries(ctx context.Context, url string) ([]Delivery, error) {
	var list []Delivery
	err := get(ctx, url+"/deliveries", func(r io.Reader) error { return json.NewDecoder(r).Decode(&list) })
	return list, err
}

func count(ctx context.Context, url string) (n int, err error) {
	err = get(ctx, url+"/count", func(r io.Reader) error {
		b, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		n, err = strconv.Atoi(strings.TrimSpace(string(b)))
		return err
	})
	return n, err
}

// direct uses no proxy: the consumer is on this machine.
var direct = &http.Client{Transport: &http.Transport{}}

func get(ctx context.Context, url string, read func(io.Reader) error) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := direct.Do(req)
	if err != nil {
		return fmt.Errorf("read from the consumer: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("read from the consumer: %s responds with %s", url, resp.Status)
	}
	return read(resp.Body)
}
