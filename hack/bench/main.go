// Command bench measures the dispatcher next to what its user could pick instead, one system at a time,
// on a PostgreSQL of its own. It writes a table, the numbers as JSON, and plots.
//
//	go run . -quick          # does everything work? seconds
//	go run .                 # about 80 minutes on two quiet cores
//	go run . -cells drain    # a part
//
// It runs on Linux and needs PostgreSQL's server binaries (as root on Debian it installs them), and npm
// for the peers in Node.js: without it, it says so and continues without them. Run it in its directory.
// All that runs shares the machine's cores. Each run checks itself: what is delivered must be what was
// inserted, or the row is marked as failed.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) == 3 && os.Args[1] == workerFlag {
		var j job
		err := json.Unmarshal([]byte(os.Args[2]), &j)
		if err == nil {
			err = work(context.Background(), j)
		}
		exit(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	o, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err == nil {
		err = run(ctx, o)
	}
	exit(err)
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

type options struct {
	cells []cell
	sinks string
	// builds are dispatchers that the cell kafka measures instead of this tree's.
	builds []build
	runs   int
	size   sizes
	out    string
}

func parse(args []string) (o options, err error) {
	var names []string
	for _, c := range cells {
		names = append(names, c.name)
	}
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	chosen := f.String("cells", strings.Join(names, ","), "what to measure, in this order")
	f.StringVar(&o.sinks, "sinks", "", "of the cell sinks, only the destinations with this word in their names; none means all")
	f.IntVar(&o.runs, "runs", 3, "runs of the cells that are repeated, of the drain and of order per key twice as many and one; the median counts")
	f.StringVar(&o.out, "out", "results", "the directory for the table, the numbers and the plots")
	builds := f.String("dispatchers", "", "of the cell kafka, builds to measure in turn instead of this tree's: name=path,...")
	small := f.Bool("quick", false, "small sizes and one run: whether everything works, not how fast")
	large := f.Bool("full", false, "longer runs, and a million events of 1 MiB: about two hours")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if o.builds, err = parseBuilds(*builds); err != nil {
		return o, err
	}
	switch o.size = standard; {
	case *small:
		o.size, o.runs = quick, 1
	case *large:
		o.size = full
	}
	if o.runs < 1 {
		return o, fmt.Errorf("-runs is %d; use 1 or more", o.runs)
	}
	if len(destinations(o.sinks)) == 0 {
		return o, fmt.Errorf("-sinks: no destination has %q in its name", o.sinks)
	}
	for _, name := range strings.Split(*chosen, ",") {
		i := slices.Index(names, name)
		if i < 0 {
			return o, fmt.Errorf("-cells: there is no %q; choose from %s", name, strings.Join(names, ", "))
		}
		o.cells = append(o.cells, cells[i])
	}
	return o, nil
}

// bench is one run of the benchmark.
type bench struct {
	options
	srv     *server
	node    string // the Node.js to run peers with; empty for none
	began   time.Time
	results results
}

// run measures the cells. Rows that failed are in the table, and make it fail at the end.
func run(ctx context.Context, o options) error {
	b := &bench{options: o, began: time.Now()}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	b.results = results{Began: b.began.UTC().Format(time.DateTime) + " UTC", Machine: machine(), Settings: settings, Peers: map[string]string{}}
	if err := b.prepareNode(ctx); err != nil {
		return err
	}
	if err := b.versions(); err != nil {
		return err
	}
	var err error
	if b.srv, err = startServer(ctx, settings); err != nil {
		return err
	}
	defer b.srv.close()
	b.results.PostgreSQL = b.srv.Version
	if o.size.note != "" {
		b.note("%s", o.size.note)
	}
	b.say("%s; %s", b.results.Machine, b.results.PostgreSQL)
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		b.say("  %s = %s", name, settings[name])
	}
	for i, c := range o.cells {
		rest := 0.0
		for _, later := range o.cells[i:] {
			rest += later.minutes
		}
		b.say("== %s (%d of %d; in a default run about %.0f minutes to go)", c.title, i+1, len(o.cells), rest)
		c.run(ctx, b)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := b.write(); err != nil { // what is there, should the rest fail
			return err
		}
	}
	return b.verdict()
}

// verdict writes the results and prints the acceptance table.
func (b *bench) verdict() error {
	if err := b.write(); err != nil {
		return err
	}
	fmt.Println()
	fmt.Print(acceptanceTable(b.results.Acceptance))
	fmt.Printf("\nThe table, the numbers and the plots are in %s.\n", b.out)
	failed := 0
	for _, r := range b.results.Rows {
		if r.Failed == "" || r.Slow {
			continue
		}
		fmt.Printf("FAILED: %s, %s, %s: %s\n", r.Cell, r.System, r.Case, r.Failed)
		if !r.Peer {
			failed++
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d rows failed", failed)
	}
	return nil
}

func (b *bench) write() error {
	b.results.Took = time.Since(b.began).Round(time.Second).String()
	b.results.Acceptance = judge(&b.results)
	data, err := json.MarshalIndent(b.results, "", "  ")
	if err != nil {
		return err
	}
	files := map[string]string{"results.json": string(data) + "\n", "results.md": markdown(&b.results)}
	maps.Copy(files, plots(&b.results))
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(b.out, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) say(format string, args ...any) {
	fmt.Printf("%s  %s\n", time.Since(b.began).Round(time.Second), fmt.Sprintf(format, args...))
}

// measureDrain adds a drain to a row.
func (b *bench) measureDrain(ctx context.Context, cell string, s system, c string, o drainOf) {
	b.measure(ctx, cell, s, c, func() (measure, error) { return b.drain(ctx, s, o) })
}

// measure adds a run to a row, or makes the row. One that fails marks the row.
func (b *bench) measure(ctx context.Context, cell string, s system, c string, run func() (measure, error)) {
	if ctx.Err() != nil {
		return
	}
	i := slices.IndexFunc(b.results.Rows, func(r *row) bool { return r.Cell == cell && r.System == s.Name && r.Case == c })
	if i < 0 {
		i = len(b.results.Rows)
		b.results.Rows = append(b.results.Rows, &row{Cell: cell, System: s.Name, Settings: s.Settings, Case: c, Peer: s.Peer})
	}
	r := b.results.Rows[i]
	m, err := run()
	if err != nil {
		r.Failed, r.Slow = err.Error(), errors.Is(err, errSlow)
		b.say("%s, %s, %s: FAILED: %v", cell, s.Name, c, err)
	}
	if err == nil || r.Slow && m != nil {
		r.Runs = append(r.Runs, m)
		r.summarize()
		b.say("%s, %s, %s: %s", cell, s.Name, c, m.brief())
	}
}
