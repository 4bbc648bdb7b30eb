package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink"
	"github.com/outbox-operator/outbox-operator/hack/testing/commands"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

func TestCommandsAndFlagsAreOnAPage(t *testing.T) {
	commands.Check(t, rootCommand("dev"), "../../..", "dispatcher/README.md")
	commands.Narrow(t, rootCommand("dev"), 120)
}

// A script that misspells a subcommand, or forgets it, must not succeed.
func TestMisspeltCommandFails(t *testing.T) {
	tried := 0
	var visit func(*cobra.Command)
	visit = func(cmd *cobra.Command) {
		path := strings.Fields(cmd.CommandPath())[1:]
		for _, sub := range cmd.Commands() {
			visit(sub)
			for _, args := range [][]string{{sub.Name() + "x"}, {sub.Name() + "x", "-f", "x", "--rate=2"}} {
				tried++
				var out, stderr strings.Builder
				code := Main(t.Context(), "dev", slices.Concat(path, args), strings.NewReader(""), &out, &stderr)
				if want := fmt.Sprintf("has no command %q; did you mean ", args[0]); code != exitFailed || out.Len() > 0 || !strings.Contains(stderr.String(), want) || !strings.Contains(stderr.String(), sub.Name()) {
					t.Errorf("%v: code %d, %q, %q; want code 1 and %q", slices.Concat(path, args), code, out.String(), stderr.String(), want)
				}
			}
		}
		if cmd.HasSubCommands() && cmd.HasParent() {
			var stderr strings.Builder
			if code := Main(t.Context(), "dev", path, strings.NewReader(""), io.Discard, &stderr); code != exitFailed || !strings.Contains(stderr.String(), "name one of its commands: ") {
				t.Errorf("%v: code %d, %q; want code 1 and the names of the commands", path, code, stderr.String())
			}
		}
	}
	visit(rootCommand("dev"))
	need.That(t, tried >= 40, "only %d commands were tried", tried)
	var help strings.Builder
	if code := Main(t.Context(), "dev", nil, strings.NewReader(""), &help, io.Discard); code != exitOK || !strings.Contains(help.String(), "Available Commands") {
		t.Errorf("without arguments: code %d, %q; want the help", code, help.String())
	}
}

// The last line is one line of at most 1,000 bytes, whatever the error says.
//
// CONTRACT: C-101
func TestReasonIsOneBoundedLine(t *testing.T) {
	long := strings.Repeat("é", 3000)
	many := make([]error, 64)
	for i := range many {
		many[i] = fmt.Errorf("%s: line 1,\tcolumn 2: a sentence of some length that says what is wrong%s", "sink.routes[0].to", "\n\n")
	}
	for name, c := range map[string]struct {
		err        error
		begin, end string
	}{
		"short":      {errors.New(strings.Join([]string{"a", "  b ", ""}, "\n")), "a; b", "a; b"},
		"one long":   {errors.New(long), "é", "é…"},
		"many":       {errors.Join(many...), "sink.routes[0].to: line 1, column 2: a sentence", "more)"},
		"long first": {errors.Join(errors.New(long), errors.New("b")), "é", "… (and 1 more)"},
		"long later": {errors.Join(errors.New("a"), errors.New(long), errors.New("c")), "a (and 2 more)", "a (and 2 more)"},
	} {
		got := brief(c.err)
		if len(got) > maxReason || strings.ContainsAny(got, "\n\t") || !utf8.ValidString(got) || !strings.HasPrefix(got, c.begin) || !strings.HasSuffix(got, c.end) {
			t.Errorf("%s: %d bytes: %s", name, len(got), got)
		}
	}
}

// Messages name the flag that was given or is missing, and --version is as of other programs.
func TestMessagesNameTheFlags(t *testing.T) {
	for _, test := range []struct {
		args, want string
	}{
		{args: "--version", want: "dispatcher version v1.2.3\n"},
		{args: "completion bash", want: "bash completion V2 for dispatcher"},
		{args: "enqueue -f FILE --topic orders", want: "--payload is missing; give the event's payload as JSON"},
		{args: "enqueue -f FILE --payload {}", want: "--topic is missing; name the topic of the event"},
		{args: "verify-consumer --url 127.0.0.1:8091/events", want: "the flags do not fit: --url: url must be an http:// or https:// URL"},
		{args: "enqueue --help", want: "--header stringToString"},
	} {
		var out strings.Builder
		code := Main(t.Context(), "v1.2.3", strings.Fields(test.args), strings.NewReader(""), &out, &out)
		if !strings.Contains(out.String(), test.want) || strings.Contains(out.String(), "default []") || strings.Contains(out.String(), "dispatcher: ") != (code != exitOK) {
			t.Errorf("%s: code %d, %s; want %s", test.args, code, out.String(), test.want)
		}
	}
	if _, err := linesOf(strings.NewReader(`{"headers": {"a": 1}}`))(); err == nil || err.Error() != "headers.a holds a number; give a string" && err.Error() != "headers holds a number; give a string" {
		t.Errorf("a header that is a number: %v", err)
	}
}

// The operator reads the outcome of an operation from the termination message, of which Kubernetes keeps 4096 bytes.
// CONTRACT: C-42
func TestOutcomeFitsTheTerminationMessage(t *testing.T) {
	for _, text := range []string{"<", ">", "&", `"`, "\u2028", "ü", "\x01"} {
		long := strings.Repeat(text, 1000)
		p := status.Replay{ID: uuid.New(), Namespace: long, Action: "replay", Rate: 100_000, LastError: long, Progress: status.Progress{Matched: 1 << 40, Delivered: 1 << 40, Stopped: long,
			StartedAt: status.At(time.Now()), FinishedAt: status.At(time.Now()), Skipped: []status.Skipped{{Reason: status.SkippedStopped, Count: 1 << 40}}}}
		for range 7 {
			p.WaitingFor = append(p.WaitingFor, status.Wait{Reason: status.WaitsForTopic, Event: uuid.NewString(), Detail: long})
		}
		message, err := finalText(p)
		var read status.Replay
		if err == nil {
			err = json.Unmarshal([]byte(message), &read)
		}
		need.That(t, err == nil && len(message) < 4096, "%q: a message of %d bytes, %v", text, len(message), err)
		if read.ID != p.ID || read.Delivered != p.Delivered || read.FinishedAt != p.FinishedAt || len(read.Skipped) != 1 || read.Stopped == "" || read.LastError == "" {
			t.Errorf("%q: the operator reads %+v", text, read)
		}
	}
}

type switches struct{ pauses, resumes int }

func (s *switches) Pause()  { s.pauses++ }
func (s *switches) Resume() { s.resumes++ }

// The file is read each second: what has not changed does nothing, and is not logged again.
func TestStateFileIsReadAgain(t *testing.T) {
	var log bytes.Buffer
	engine := &switches{}
	f := &stateFile{watchedFile: watchedFile{field: "--state-file", path: filepath.Join(t.TempDir(), "state"), log: slog.New(slog.NewTextHandler(&log, nil))}, engine: engine, last: spec.Running}
	for _, step := range []struct {
		text            string
		pauses, resumes int
		lines           int
		unusable        bool
	}{
		{text: "Running"},
		{text: "Paused\n", pauses: 1, lines: 1},
		{text: "hunter2", pauses: 1, lines: 2, unusable: true},
		{text: "Paused", pauses: 1, lines: 3},
		{text: " Running ", pauses: 1, resumes: 1, lines: 4},
	} {
		need.OK(t, os.WriteFile(f.path, []byte(step.text), 0o600))
		for range 3 {
			f.refresh()
		}
		if engine.pauses != step.pauses || engine.resumes != step.resumes || (len(f.problems()) == 1) != step.unusable {
			t.Errorf("%q: %+v, problems %v, want %d pauses, %d resumes, unusable %t", step.text, engine, f.problems(), step.pauses, step.resumes, step.unusable)
		}
		if n := strings.Count(log.String(), "\n"); n != step.lines {
			t.Errorf("%q: %d lines, want %d:\n%s", step.text, n, step.lines, log.String())
		}
	}
	if strings.Contains(log.String(), "hunter2") {
		t.Error("what the file holds is logged")
	}
}

// gate is an engine that records the types it admits.
type gate struct {
	admits func(string) bool
	calls  int
}

func (g *gate) Admit(admits func(string) bool) { g.admits, g.calls = admits, g.calls+1 }

// The file is read each second: what has not changed does nothing, what cannot be read changes nothing, and an
// empty one admits nothing.
//
// CONTRACT: C-82
func TestVerifiedTypesFileIsReadAgain(t *testing.T) {
	var log bytes.Buffer
	engine := &gate{}
	f := &typesFile{watchedFile: watchedFile{field: "--verified-types-file", path: filepath.Join(t.TempDir(), "types"), log: slog.New(slog.NewTextHandler(&log, nil))}, engine: engine}
	for _, step := range []struct {
		text            string // "-" for no file
		calls, lines    int
		admits, refuses string // types, by space
		problem         string
	}{
		{text: "-", lines: 1, problem: "write the event types"},
		{text: "", calls: 1, lines: 3, refuses: "order.placed *"},
		{text: "order.placed\npayment.*\n", calls: 2, lines: 4, admits: "order.placed payment. payment.settled", refuses: "order.placed2 order payment order.* Payment.x"},
		{text: "order.placed\r\n\npayment.*", calls: 2, lines: 4, admits: "order.placed payment.settled"},
		{text: "-", calls: 2, lines: 5, admits: "order.placed", problem: "no such file"},
		{text: strings.Repeat("x", maxTypes+1), calls: 2, lines: 6, admits: "order.placed", problem: "list fewer"},
		{text: "*", calls: 3, lines: 8, admits: "order.placed anything"},
	} {
		_ = os.Remove(f.path)
		if step.text != "-" {
			need.OK(t, os.WriteFile(f.path, []byte(step.text), 0o600))
		}
		for range 3 {
			f.refresh()
		}
		name := step.text[:min(len(step.text), 20)]
		if n := strings.Count(log.String(), "\n"); engine.calls != step.calls || n != step.lines {
			t.Errorf("%q: %d calls and %d log lines, want %d with %d:\n%s", name, engine.calls, n, step.calls, step.lines, log.String())
		}
		if p := f.problems(); (len(p) == 1) != (step.problem != "") || len(p) == 1 && (p[0].Field != "--verified-types-file" || !strings.Contains(p[0].Message, step.problem)) {
			t.Errorf("%q: problems %+v, want %q", name, p, step.problem)
		}
		for _, eventType := range strings.Fields(step.admits) {
			need.That(t, engine.admits(eventType), "%q: %s is not admitted", name, eventType)
		}
		for _, eventType := range strings.Fields(step.refuses) {
			need.That(t, !engine.admits(eventType), "%q: %s is admitted", name, eventType)
		}
	}
}

// Without an endpoint there is nothing between the engine and the sink, and no exporter: tracing costs
// nothing. With one, the sink is wrapped.
func TestSinkIsWrappedOnlyWithTracing(t *testing.T) {
	for _, set := range os.Environ() {
		if name, _, _ := strings.Cut(set, "="); strings.HasPrefix(name, "OTEL_") {
			t.Setenv(name, "")
		}
	}
	cfg := smallest(t)
	bare, err := sink.New(cfg, io.Discard)
	need.OK(t, err)
	for endpoint, traced := range map[string]bool{"": false, "http://127.0.0.1:1": true} {
		t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
		e, err := newProcess(t.Context(), "v1", cfg, nil, io.Discard, io.Discard)
		need.OK(t, err)
		if same := fmt.Sprintf("%T", e.sink) == fmt.Sprintf("%T", bare); same == traced || (e.spans != nil) != traced {
			t.Errorf("endpoint %q: the sink is a %s, the exporter is %v", endpoint, fmt.Sprintf("%T", e.sink), e.spans)
		}
		e.close(t.Context())
	}
}

// A container that may take little memory has a lower limit; without one, or outside, it is the default.
func TestSoftLimitFollowsTheContainer(t *testing.T) {
	dir := t.TempDir()
	need.Want(t, memoryLimit, "%d without the file, want %d", softLimit(filepath.Join(dir, "none")))
	file := filepath.Join(dir, "memory.max")
	for text, want := range map[string]int64{"max\n": memoryLimit, "134217728\n": 96 << 20, "8589934592\n": memoryLimit} {
		need.OK(t, os.WriteFile(file, []byte(text), 0o600))
		if got := softLimit(file); got != want {
			t.Errorf("%d of %q, want %d", got, text, want)
		}
	}
}

// The policy that the file names is the one that the engine gets. CONTRACT: C-25
func TestBackoffIsThatOfTheFile(t *testing.T) {
	second := spec.Duration(time.Second)
	percent, none := int32(50), int32(0)
	for name, c := range map[string]struct {
		b                 spec.Backoff
		attempts          int
		shortest, longest time.Duration
	}{
		"default":            {spec.Backoff{}, 3, 2 * time.Second, 4 * time.Second},
		"exponential":        {spec.Backoff{Base: second, Max: 8 * second}, 9, 4 * time.Second, 8 * time.Second},
		"multiplier":         {spec.Backoff{Strategy: spec.BackoffMultiplier, Base: second, Max: 100 * second, Multiplier: "3", JitterPercent: &percent}, 3, 4500 * time.Millisecond, 13500 * time.Millisecond},
		"without jitter":     {spec.Backoff{Strategy: spec.BackoffMultiplier, JitterPercent: &none}, 3, 4 * time.Second, 4 * time.Second},
		"power of two":       {spec.Backoff{Strategy: spec.BackoffPowerOfTwo}, 30, 1024 * time.Second, 1024 * time.Second},
		"linear, overview's": {spec.Backoff{Strategy: spec.BackoffLinear}, 2, 2 * time.Minute, 2 * time.Minute},
	} {
		policy := backoff(c.b)
		shortest := policy.Delay(c.attempts, func() float64 { return 0 })
		longest := policy.Delay(c.attempts, func() float64 { return 1 - 1e-12 })
		if shortest.Round(time.Millisecond) != c.shortest || longest.Round(time.Millisecond) != c.longest {
			t.Errorf("%s: from %s to %s, want %s to %s", name, shortest, longest, c.shortest, c.longest)
		}
	}
}
