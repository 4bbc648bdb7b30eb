package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/hack/testing/commands"
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
	if tried < 40 {
		t.Errorf("only %d commands were tried", tried)
	}
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
		{args: "verify-consumer --url 127.0.0.1:8091/events", want: "the flags do not fit: --url must be an http:// or https:// URL"},
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
		p := status.Replay{ID: uuid.New(), Namespace: long, Action: "replay", Rate: 100_000, Matched: 1 << 40, Delivered: 1 << 40, Stopped: long, LastError: long,
			BeganAt: time.Now(), FinishedAt: time.Now(), Skipped: []status.Skipped{{Reason: status.SkippedStopped, Count: 1 << 40}}}
		for range 7 {
			p.WaitingFor = append(p.WaitingFor, status.Wait{Reason: status.WaitsForTopic, Event: uuid.NewString(), Detail: long})
		}
		message, err := finalText(p)
		var read status.Replay
		if err == nil {
			err = json.Unmarshal([]byte(message), &read)
		}
		if err != nil || len(message) >= 4096 {
			t.Errorf("%q: a message of %d bytes, %v", text, len(message), err)
		}
		if read.ID != p.ID || read.Delivered != p.Delivered || !read.FinishedAt.Equal(p.FinishedAt) || len(read.Skipped) != 1 || read.Stopped == "" || read.LastError == "" {
			t.Errorf("%q: the operator reads %+v", text, read)
		}
	}
}
