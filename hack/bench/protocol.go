package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outbox-operator/outbox-operator/api/config"
)

// job says what a worker process does. It is the process's last argument, as JSON; the Node.js
// peers read the same one.
type job struct {
	// System is which worker to be: outbox, raw, river, graphile, pgboss, or consumer, which takes HTTP
	// requests.
	System string `json:"system"`
	DSN    string `json:"dsn"`
	// Role is work, or for Node.js peers insert or produce.
	Role string `json:"role"`
	// Best takes the best settings for the cell, else the system's defaults.
	Best bool `json:"best"`
	// Stamp records when each event reached the handler.
	Stamp bool `json:"stamp"`

	// The next are for our own system and the raw loop; Batch is River's number of workers, too. Poll is
	// in nanoseconds.
	Delete bool          `json:"delete,omitempty"`
	Key    bool          `json:"key,omitempty"`
	Listen bool          `json:"listen,omitempty"`
	Batch  int           `json:"batch,omitempty"`
	Poll   time.Duration `json:"poll,omitempty"`
	Topics []string      `json:"topics,omitempty"`
	// Sink is where our own system delivers to. nil: to a handler that does nothing.
	Sink *config.Sink `json:"sink,omitempty"`
	// Address is where a consumer listens.
	Address string `json:"address,omitempty"`

	// Events, Payload, Rate and Seconds are for the roles that write.
	Events  int     `json:"events,omitempty"`
	Payload int     `json:"payload,omitempty"`
	Rate    float64 `json:"rate,omitempty"`
	Seconds float64 `json:"seconds,omitempty"`
}

// report is a line that a worker process prints.
type report struct {
	Ready bool `json:"ready,omitempty"`
	// Handled counts events that the handler has seen and, where the system reports, that are written
	// back. At is when the last of them was, on the machine's monotonic clock in nanoseconds.
	Handled int64 `json:"handled,omitempty"`
	At      int64 `json:"at,omitempty"`
	// Marked counts the events that are not of the hot key, MarkedAt is the last of them.
	Marked   int64 `json:"marked,omitempty"`
	MarkedAt int64 `json:"markedAt,omitempty"`
	// Inversions counts events that came after a later one of their key.
	Inversions int64 `json:"inversions,omitempty"`
	// Stamps are the times of the events by number, at the end.
	Stamps []stamp `json:"stamps,omitempty"`
	Error  string  `json:"error,omitempty"`
}

// stamp is an event's number and a time on the monotonic clock, in nanoseconds.
type stamp [2]int64

// now is the machine's monotonic clock: the same for all processes, also for Node.js's hrtime. It costs no system call,
// on which a worker would spend a tenth of its time.
func now() int64 { return began.ticks + int64(time.Since(began.at)) }

// began is one moment on that clock and on Go's, which runs with it.
var began = func() (b struct {
	ticks int64
	at    time.Time
}) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(fmt.Sprintf("read the monotonic clock: %v", err))
	}
	b.ticks, b.at = ts.Nano(), time.Now()
	return b
}()

// payload is a JSON object of size bytes, at most 1 MiB, with the event's number. Its text does not
// compress.
func payload(n, size int) []byte {
	head := `{"n":` + strconv.Itoa(n) + `,"text":"`
	pad := max(0, size-len(head)-2)
	from := n * 7919 % (len(noise) / 2)
	return []byte(head + noise[from:from+pad] + `"}`)
}

// noise is 2 MiB of text that is the same each time.
var noise = sync.OnceValue(func() string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	var text strings.Builder
	x := uint64(88172645463325252)
	for range 2 << 20 {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		text.WriteByte(alphabet[x>>58])
	}
	return text.String()
})()

// number reads the event's number from its payload.
func number(payload []byte) (int64, error) {
	var p struct {
		N int64 `json:"n"`
	}
	if err := json.Unmarshal(payload, &p); err != nil {
		return 0, fmt.Errorf("read the event's number: %w", err)
	}
	return p.N, nil
}

// counter is what a Go worker knows of its events.
type counter struct {
	mu     sync.Mutex
	report report
	last   map[string]int64 // the highest seq by key
	stamps []stamp
}

// stamp records that event n reached the handler.
func (c *counter) stamp(n int64) {
	at := now()
	c.mu.Lock()
	c.stamps = append(c.stamps, stamp{n, at})
	c.mu.Unlock()
}

// saw checks the order of an event that reached the handler.
func (c *counter) saw(key string, seq int64) {
	c.mu.Lock()
	if c.last == nil {
		c.last = map[string]int64{}
	}
	if seq < c.last[key] {
		c.report.Inversions++
	}
	c.last[key] = max(seq, c.last[key])
	c.mu.Unlock()
}

// done counts n events, marked of which are not of the hot key.
func (c *counter) done(n, marked int64) {
	at := now()
	c.mu.Lock()
	c.report.Handled += n
	c.report.At = at
	if marked > 0 {
		c.report.Marked += marked
		c.report.MarkedAt = at
	}
	c.mu.Unlock()
}

func (c *counter) read() report {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.report
}

// obey is the life of a Go worker: it says that it is ready, starts on command, says how far it is,
// and stops on command. work returns when its channel is closed.
func (c *counter) obey(work func(stop <-chan struct{}) error) error {
	out := json.NewEncoder(os.Stdout)
	if err := out.Encode(report{Ready: true}); err != nil {
		return err
	}
	if _, err := io.ReadFull(os.Stdin, make([]byte, 1)); err != nil {
		return nil // not started after all
	}
	stop, stopped := make(chan struct{}), make(chan error, 1)
	go func() { stopped <- work(stop) }()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(stop)
	}()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for reported := int64(0); ; {
		select {
		case err := <-stopped:
			r := c.read()
			c.mu.Lock()
			r.Stamps = c.stamps
			c.mu.Unlock()
			if err != nil {
				r.Error = err.Error()
			}
			return out.Encode(r)
		case <-tick.C:
			if r := c.read(); r.Handled > reported {
				reported = r.Handled
				if err := out.Encode(r); err != nil {
					return err
				}
			}
		}
	}
}
