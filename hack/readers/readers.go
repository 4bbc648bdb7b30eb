// Package readers reads messages as consumers in other languages do. In Python: with the CloudEvents SDK and the clients
// that brokers have there, which are confluent-kafka, pika and, for AMQP 1.0, Qpid Proton; from the Python Package Index,
// in an environment of their own in the user's cache. In Java: with the CloudEvents SDK and Kafka's own client, from
// Maven's repository.
package readers

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"

	"github.com/outbox-operator/outbox-operator/hack/testing/languages"
)

// ErrMissing is returned when this machine has no reader in Python and cannot get it.
var ErrMissing = errors.New("no CloudEvents SDK for Python on this machine; install python3 with its module venv, and let pip reach its index")

var (
	// The runtime dependencies of io.cloudevents:cloudevents-kafka and cloudevents-json-jackson, of
	// org.apache.kafka:kafka-clients and of org.slf4j:slf4j-nop.
	//
	//go:embed jars.sha256
	jars string
	//go:embed Reader.java
	reader string
	//go:embed requirements.txt
	requirements []byte
	//go:embed readers.py
	program string
)

// Event is an event as a reader has it.
type Event struct {
	// Attributes are as text; the time is in the form of RFC 3339.
	Attributes map[string]string `json:"attributes"`
	// Data is the data as it was sent.
	Data []byte `json:"data"`
	// Key is a record's key, for Kafka.
	Key string `json:"key"`
}

// buffered is how many lines a reader may be ahead of its caller, so that it never waits.
const buffered = 10_000

// Reader is a reader that runs.
type Reader struct {
	cmd    *exec.Cmd
	lines  chan []byte
	errors bytes.Buffer
}

// Start starts a reader in Python with the arguments that readers.py describes. It ends with ctx at the latest.
// It returns [ErrMissing] when it cannot be installed.
func Start(ctx context.Context, args ...string) (*Reader, error) {
	bin, err := languages.PythonEnvironment(ctx, "readers", requirements)
	if err != nil {
		return nil, fmt.Errorf("%w (%w)", ErrMissing, err)
	}
	return start(exec.CommandContext(ctx, filepath.Join(bin, "python"), append([]string{"-c", program}, args...)...))
}

// StartJava starts the reader in Java with the arguments that Reader.java describes: the CloudEvents SDK for Java and Kafka's
// own client. Its source is in dir. It ends with ctx at the latest. It returns [languages.ErrMissing] when it cannot be installed.
func StartJava(ctx context.Context, dir string, args ...string) (*Reader, error) {
	cmd, err := languages.Java(ctx, jars, dir, "Reader", reader, args...)
	if err != nil {
		return nil, err
	}
	return start(cmd)
}

// start starts a program that writes a line for each event.
func start(cmd *exec.Cmd) (*Reader, error) {
	r := &Reader{cmd: cmd, lines: make(chan []byte, buffered)}
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	r.cmd.Stderr = &r.errors
	if err := r.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(r.lines)
		for in := bufio.NewReader(out); ; {
			line, err := in.ReadBytes('\n')
			if err != nil {
				return
			}
			r.lines <- bytes.TrimSuffix(line, []byte{'\n'})
		}
	}()
	return r, nil
}

// Line is the next line: the port of a reader of HTTP. It returns an error when the reader ended.
func (r *Reader) Line() (string, error) {
	line, ok := <-r.lines
	if !ok {
		return "", r.ended(errors.New("it wrote nothing"))
	}
	return string(line), nil
}

// Events reads all events, until the reader ends. It returns an error when the reader failed.
func (r *Reader) Events() (all []Event, err error) {
	for line := range r.lines {
		var e Event
		if err := json.Unmarshal(line, &e); err != nil {
			return all, fmt.Errorf("the reader wrote no JSON: %w", err)
		}
		all = append(all, e)
	}
	return all, r.ended(nil)
}

// ended waits for the reader's end, and returns what it complained of.
func (r *Reader) ended(err error) error {
	if err = errors.Join(err, r.cmd.Wait()); err != nil {
		return fmt.Errorf("the reader: %w: %s", err, r.errors.Bytes())
	}
	return nil
}
