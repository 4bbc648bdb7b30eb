package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"
)

// job says what a worker process does. It is the process's last argument, as JSON.
type job struct {
	System string // ours, plain or river
	DSN    string
	Events int           // that it handles
	Stamp  bool          // records when each event reached the handler
	Tuned  bool          // River's best settings
	Batch  int           // of a claim; 0: ours is default
	Poll   time.Duration // of the plain loop, when nothing is due
	Delete bool          // delivered rows are deleted
	Key    bool          // ordering Key
	Listen bool          // wakeUp Listen
}

// report is what a worker process prints: an empty one when it is ready, one when all events are handled, and one at its end.
type report struct {
	// Handled counts the events that the handler has seen and, where the system reports, that are written back. At is when
	// the last of them was, in nanoseconds.
	Handled int
	At      int64
	// Others counts the events that are not of the hot key, and OthersAt is the last of them.
	Others   int
	OthersAt int64
	// Inversions counts events that came after a later one of their key.
	Inversions int
	// Stamps are the times at which the events reached the handler, by their numbers. 0: it did not.
	Stamps []int64
}

// counter is what a worker process knows of its events.
type counter struct {
	job
	mu   sync.Mutex
	sum  report
	last map[string]int64 // the highest seq by key
}

// saw records an event that reached the handler.
func (c *counter) saw(payload []byte, key string, seq int64) error {
	if !c.Stamp && (!c.Key || key == "") {
		return nil
	}
	at := time.Now().UnixNano()
	n, err := number(payload)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.Stamp && err == nil {
		c.sum.Stamps[n] = at
	}
	if c.Key && key != "" {
		if seq < c.last[key] {
			c.sum.Inversions++
		}
		c.last[key] = max(seq, c.last[key])
	}
	return err
}

// done counts n events that are handled, others of which are not of the hot key.
func (c *counter) done(n, others int) {
	at := time.Now().UnixNano()
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.sum.Handled
	c.sum.Handled, c.sum.At = before+n, at
	if others > 0 {
		c.sum.Others, c.sum.OthersAt = c.sum.Others+others, at
	}
	if before < c.Events && c.sum.Handled >= c.Events {
		c.print(c.sum)
	}
}

func (c *counter) print(r report) {
	if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
		fmt.Fprintln(os.Stderr, "print a report:", err)
	}
}

// work is the life of a worker process: it says that it is ready, starts on command, and stops when its standard input
// ends, which it does at the latest with the process that started it.
func work(ctx context.Context, text string) error {
	c := &counter{last: map[string]int64{}}
	if err := json.Unmarshal([]byte(text), &c.job); err != nil {
		return err
	}
	if c.Stamp {
		c.sum.Stamps = make([]int64, c.Events)
	}
	prepare := map[string]func(context.Context, *counter) (func(context.Context) error, error){
		"ours": oursWork, "plain": plainWork, "river": riverWork,
	}[c.System]
	run, err := prepare(ctx, c)
	if err != nil {
		return err
	}
	c.print(report{})
	if _, err := io.ReadFull(os.Stdin, make([]byte, 1)); err != nil {
		return nil // not started after all
	}
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // until it ends
		cancel()
	}()
	err = run(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.print(c.sum)
	return err
}

// worker is a worker process.
type worker struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	out    *json.Decoder
	stderr tail
}

// startWorker runs a job in a process of its own, and returns when it is ready. The process ends with ctx.
func startWorker(ctx context.Context, j job) (*worker, error) {
	text, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	w := &worker{cmd: exec.CommandContext(ctx, self, workerFlag, string(text))}
	w.cmd.Stderr = &w.stderr
	w.cmd.Env = append([]string{"GOGC=125", "GOMEMLIMIT=160MiB"}, os.Environ()...) // as our binary sets it, unless it is set; for every system
	if w.stdin, err = w.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := w.cmd.StdoutPipe()
	if err == nil {
		err = w.cmd.Start()
	}
	if err != nil {
		return nil, err
	}
	w.out = json.NewDecoder(stdout)
	_, err = w.next()
	return w, err
}

// begin has the process start working.
func (w *worker) begin() error {
	_, err := w.stdin.Write([]byte("\n"))
	return err
}

// next waits for the process's next report.
func (w *worker) next() (r report, err error) {
	if err = w.out.Decode(&r); err != nil {
		err = fmt.Errorf("a worker process of %s: %w", w.cmd.Args, errors.Join(err, w.cmd.Wait(), errors.New(w.stderr.String())))
	}
	return r, err
}

// stop ends the process and returns its last report.
func (w *worker) stop() (report, error) {
	_ = w.stdin.Close() // that it has ended is seen below
	r, err := w.next()
	if err == nil {
		err = w.cmd.Wait()
	}
	if err != nil {
		err = fmt.Errorf("%w: %s", err, &w.stderr)
	}
	return r, err
}

// tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	text []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	t.text = t.text[max(0, len(t.text)-1500):]
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.text)
}

// payload is a JSON object of 200 bytes with the event's number. Its text does not compress.
func payload(n int) []byte {
	head := fmt.Sprintf(`{"n":%d,"text":"`, n)
	from := n * 7919 % (len(noise) / 2)
	return []byte(head + noise[from:from+198-len(head)] + `"}`)
}

// noise is 64 KiB of text that is the same each time.
var noise = func() string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	text := make([]byte, 64<<10)
	x := uint64(88172645463325252)
	for i := range text {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		text[i] = alphabet[x>>58]
	}
	return string(text)
}()

// number reads the event's number from its payload.
func number(payload []byte) (int, error) {
	var p struct{ N int }
	if err := json.Unmarshal(payload, &p); err != nil {
		return 0, fmt.Errorf("read the event's number: %w", err)
	}
	return p.N, nil
}
