// Command bench measures the dispatcher next to what its user could pick instead, one system at a time, on a PostgreSQL
// of its own. It writes a page with the tables, and two pictures.
//
//	go run . -quick          # does every cell work? some minutes; the numbers are not for quoting
//	go run .                 # about 35 minutes on two quiet cores; writes results/
//	go run . -cells drain    # a part, printed
//
// It runs on Linux and needs PostgreSQL's server binaries and, for the cell kafka, Java: as root on Debian it installs
// them. Run it in its directory. All that runs shares the machine's cores. Each run checks itself: what is delivered must
// be what was inserted, or the row is marked as failed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := command(ctx, os.Args[1:])
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// workerFlag makes this program a worker process.
const workerFlag = "-worker"

func command(ctx context.Context, args []string) error {
	if len(args) == 2 && args[0] == workerFlag {
		return work(ctx, args[1])
	}
	o, err := parse(args)
	if err != nil {
		return err
	}
	_, err = run(ctx, o)
	return err
}

// sizes say how large a run of the benchmark is.
type sizes struct {
	runs    int // of each row; of the rows whose metric is a rate, two more
	events  int // of a drain
	keys    int
	pace    time.Duration // for which a stream is counted
	rates   []float64     // of streams, in events per second; the first is the one that is repeated
	slow    int           // of the drain by River's defaults, which takes a thousand events a second
	kafka   time.Duration // for which the stream into Kafka is counted
	settled time.Duration // before something idle is measured, and for how long it is
}

var (
	standard = sizes{
		runs: 3, events: 200_000, keys: 10_000, pace: 6 * time.Second, rates: []float64{500, 100, 2000}, slow: 10_000,
		kafka: 30 * time.Second, settled: 8 * time.Second,
	}
	quick = sizes{
		runs: 1, events: 2000, keys: 50, pace: time.Second, rates: []float64{200}, slow: 500,
		kafka: 2 * time.Second, settled: time.Second,
	}
)

type options struct {
	sizes
	cells []cell
	quick bool
	out   string // the directory for the page and the pictures; empty: the page is printed
}

func parse(args []string) (o options, err error) {
	var names []string
	for _, c := range cells {
		names = append(names, c.name)
	}
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	chosen := f.String("cells", strings.Join(names, ","), "what to measure, in this order")
	f.BoolVar(&o.quick, "quick", false, "small sizes and one run: whether everything works, not how fast. Not for quoting")
	f.StringVar(&o.out, "out", "", "the directory for the page and the pictures (default results for a whole run; a part is printed)")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	o.sizes = standard
	if o.quick {
		o.sizes = quick
	}
	for _, name := range strings.Split(*chosen, ",") {
		i := slices.Index(names, name)
		if i < 0 {
			return o, fmt.Errorf("-cells: there is no %q; choose from %s", name, strings.Join(names, ", "))
		}
		o.cells = append(o.cells, cells[i])
	}
	if o.out == "" && !o.quick && len(o.cells) == len(cells) {
		o.out = "results"
	}
	return o, nil
}

// bench is one run of the benchmark.
type bench struct {
	options
	results
	srv *server
}

// run measures the cells. Rows that failed are in the page, and make it fail at the end.
func run(ctx context.Context, o options) (*bench, error) {
	b := &bench{options: o, results: results{began: time.Now(), river: versionOf("github.com/riverqueue/river")}}
	var err error
	if b.srv, err = startServer(ctx, settings); err != nil {
		return nil, err
	}
	defer b.srv.close()
	b.postgres = b.srv.version
	if o.quick {
		b.note("This was a quick run, to see whether every cell works. Its numbers say nothing about speed: do not quote them.")
	}
	for _, c := range o.cells {
		b.say("== %s", c.title)
		c.run(ctx, b)
		if ctx.Err() != nil {
			return b, context.Cause(ctx)
		}
	}
	return b, b.write()
}

// write writes what was measured.
func (b *bench) write() error {
	files := plots(b.rows)
	files["results.md"] = b.markdown()
	if b.out == "" {
		fmt.Print("\n", files["results.md"])
	} else if err := os.MkdirAll(b.out, 0o755); err != nil {
		return err
	} else {
		for name, text := range files {
			if err := os.WriteFile(filepath.Join(b.out, name), []byte(text), 0o644); err != nil {
				return err
			}
		}
		b.say("the page and the pictures are in %s", b.out)
	}
	if i := slices.IndexFunc(b.rows, func(r *row) bool { return r.failed != "" }); i >= 0 {
		return fmt.Errorf("%s, %s, %s failed: %s", b.rows[i].cell, b.rows[i].system, b.rows[i].which, b.rows[i].failed)
	}
	return nil
}

func (b *bench) say(format string, args ...any) {
	fmt.Printf("%s  %s\n", time.Since(b.began).Round(time.Second), fmt.Sprintf(format, args...))
}

// note is for the reader of the page.
func (b *bench) note(format string, args ...any) {
	b.notes = append(b.notes, fmt.Sprintf(format, args...))
	b.say(format, args...)
}

// measure adds a run to a row, or makes the row. One that fails marks the row.
func (b *bench) measure(ctx context.Context, key row, run func() (measure, error)) {
	if ctx.Err() != nil {
		return
	}
	i := slices.IndexFunc(b.rows, func(r *row) bool {
		return r.cell == key.cell && r.system == key.system && r.which == key.which
	})
	if i < 0 {
		i = len(b.rows)
		b.rows = append(b.rows, &key)
	}
	r := b.rows[i]
	m, err := run()
	if err != nil {
		r.failed = err.Error()
		b.say("%s, %s, %s: FAILED: %v", r.cell, r.system, r.which, err)
		return
	}
	r.runs = append(r.runs, m)
	b.say("%s, %s, %s: %s", r.cell, r.system, r.which, m)
}

// versionOf is the version of a module in this program.
func versionOf(module string) string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			if dep.Path == module {
				return dep.Version
			}
		}
	}
	return "of an unknown version"
}
