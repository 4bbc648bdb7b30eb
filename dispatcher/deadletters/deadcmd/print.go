package deadcmd

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters"
)

// errorWidth is how many characters of an error a table shows.
const errorWidth = 80

func (c Commands) table(cmd *cobra.Command, result any) error {
	out, stderr, now := cmd.OutOrStdout(), cmd.ErrOrStderr(), c.now()
	switch result := result.(type) {
	case deadletters.Groups:
		if len(result.Groups) == 0 {
			fmt.Fprintln(stderr, "no open dead letters match")
			return nil
		}
		if err := WriteGroups(out, result.Groups, now); err != nil {
			return err
		}
		if result.More {
			fmt.Fprintf(stderr, "there are more than %d groups, and only these were read; narrow the filter\n", deadletters.MaxGroups)
		}
		return nil
	case deadletters.Counts:
		if len(result.Counts) == 0 {
			fmt.Fprintln(stderr, "no open dead letters match")
			return nil
		}
		if err := writeCounts(out, result, now); err != nil {
			return err
		}
		if result.More {
			fmt.Fprintf(stderr, "there are more, and these are the %d largest; narrow the filter\n", deadletters.MaxGroups)
		}
		return nil
	case deadletters.Page:
		if len(result.DeadLetters) == 0 {
			fmt.Fprintln(stderr, "no dead letters match")
			return nil
		}
		if err := writeDeadLetters(out, result.DeadLetters, now); err != nil {
			return err
		}
		if result.Next != 0 {
			fmt.Fprintf(stderr, "there are more: add --after %d\n", result.Next)
		}
		return nil
	case deadletters.DeadLetter:
		return writeDeadLetter(out, result, now)
	case deadletters.History:
		return writeHistory(out, result, now)
	}
	return fmt.Errorf("%T has no table", result)
}

// WriteGroups writes a table of groups of at most 118 columns, with the newest error of each below it. It fails when out does.
func WriteGroups(out io.Writer, groups []deadletters.Group, now time.Time) error {
	const topic, what, newest = 24, 28, 105
	var table bytes.Buffer
	w := tabwriter.NewWriter(&table, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "GROUP\tCOUNT\tSINCE\tLAST\tTOPIC\tREASON\tWHAT")
	for _, g := range groups {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", g.Group, g.Number(), Age(g.Since, now), Age(g.Last, now), truncated(g.Topic, topic), g.Reason,
			truncated(CauseOf(g.Cause), what))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	lines := strings.SplitAfter(table.String(), "\n")
	text := lines[0]
	for i, g := range groups {
		text += lines[i+1]
		if g.Error != "" {
			text += "           " + truncated(g.Error, newest) + "\n"
		}
	}
	_, err := io.WriteString(out, text)
	return err
}

func writeCounts(out io.Writer, c deadletters.Counts, now time.Time) error {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "COUNT\tGROUPS\tSINCE\tLAST\t"+strings.ToUpper(string(c.By)))
	for _, one := range c.Counts {
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\n", one.Number(), one.Groups, Age(one.Since, now), Age(one.Last, now), dash(one.Value))
	}
	return w.Flush()
}

func writeDeadLetters(out io.Writer, deadLetters []deadletters.DeadLetter, now time.Time) error {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "DEAD LETTER\tEVENT\tDEAD AT\tTOPIC\tTYPE\tAGGREGATE\tREASON\tGROUP\tATTEMPTS\tRESOLUTION\tERROR")
	for _, l := range deadLetters {
		resolution := "-"
		if l.Resolution != nil {
			resolution = strings.TrimSpace(l.Resolution.What + " " + l.Resolution.Outcome)
		}
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\n", l.ID, l.Event, Age(l.DeadAt, now), Line(l.Topic), dash(l.Type),
			dash(Aggregate(l.AggregateType, l.AggregateID)), l.Reason, l.Group, l.Attempts, resolution, truncated(l.Error, errorWidth))
	}
	return w.Flush()
}

// Field is something that is known: a text, or a time. Event is the id of another event, which the text is about.
type Field struct {
	Name, Text, Event string
	At                time.Time
}

// fields are those that have a value.
type fields []Field

func (f *fields) text(name, value string) {
	if value != "" {
		*f = append(*f, Field{Name: name, Text: Line(value)})
	}
}

func (f *fields) related(name string, r deadletters.Related) {
	*f = append(*f, Field{Name: name, Text: Line(fmt.Sprintf("%s %s: %s", r.Topic, r.ID, cmp.Or(r.Status, "gone"))), Event: r.ID})
}

func (f *fields) at(name string, at time.Time) {
	if !at.IsZero() {
		*f = append(*f, Field{Name: name, At: at})
	}
}

// writeFields writes "name: value" lines.
func writeFields(out io.Writer, fields []Field, now time.Time) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, f := range fields {
		if !f.At.IsZero() {
			f.Text = stamp(f.At) + ago(f.At, now)
		}
		fmt.Fprintf(w, "%s:\t%s\n", f.Name, f.Text)
	}
	return w.Flush()
}

// DeadLetterFields are what is known of a dead letter but for its failures and its content.
func DeadLetterFields(l deadletters.DeadLetter, now time.Time) []Field {
	f := fields{}
	f.text("Dead letter", fmt.Sprint(l.ID))
	f.text("Event", l.Event)
	f.text("Topic", l.Topic)
	f.text("Type", l.Type)
	f.text("Aggregate", Aggregate(l.AggregateType, l.AggregateID))
	f.text("Tenant", l.Tenant)
	f.at("Dead at", l.DeadAt)
	f.text("Reason", string(l.Reason))
	f.text("What", CauseOf(l.Cause))
	f.text("Group", l.Group)
	f.text("Attempts", fmt.Sprint(l.Attempts))
	f.text("Error", l.Error)
	f.text("Response", l.Response)
	f.text("Worker", l.Worker)
	if r := l.Resolution; r != nil {
		f.text("Resolution", r.What+" "+by(*r)+", "+stamp(r.At)+ago(r.At, now))
	} else {
		f.text("Resolution", "open")
	}
	status := l.Status
	if status == "" {
		status = "gone"
	}
	f.text("Event is now", status)
	f.text("What to do", l.Advice)
	return f
}

func writeDeadLetter(out io.Writer, l deadletters.DeadLetter, now time.Time) error {
	if err := writeFields(out, DeadLetterFields(l, now), now); err != nil {
		return err
	}
	if len(l.Failures) > 0 {
		fmt.Fprintln(out, "\nLast failed attempts:")
		if err := writeSteps(out, Failed(l.Failures)); err != nil {
			return err
		}
	}
	return WriteContent(out, l.Content)
}

// EventFields are what is known of an event but for its steps and its content.
func EventFields(h deadletters.History) []Field {
	f := fields{}
	if e := h.Event; e != nil {
		f.text("Event", e.ID)
		f.text("Topic", e.Topic)
		f.text("Type", e.Type)
		f.text("Aggregate", Aggregate(e.AggregateType, e.AggregateID))
		if e.AggregateSequence > 0 {
			f.text("Aggregate sequence", fmt.Sprint(e.AggregateSequence))
		}
		f.text("Partition key", e.PartitionKey)
		f.text("Dedupe key", e.DedupeKey)
		f.text("Tenant", e.Tenant)
		f.text("Size", fmt.Sprintf("%d bytes", e.SizeBytes))
		f.text("Status", e.Status)
		f.text("Attempts", fmt.Sprint(e.Attempts))
		f.at("Next attempt", e.NextAttemptAt)
		f.text("Held by", e.Worker)
		f.at("Held until", e.LeasedUntil)
		f.text("Last error", e.LastError)
	} else if len(h.DeadLetters) > 0 {
		f.text("Event", h.DeadLetters[0].Event)
		f.text("Topic", h.DeadLetters[0].Topic)
		f.text("Status", "gone: its row was removed")
	} else {
		if n := len(h.Journal); n > 0 {
			f.text("Topic", h.Journal[n-1].Topic)
		}
		f.text("Status", "gone: its row was removed")
	}
	if h.Original != nil {
		f.related("Copy of", *h.Original)
	}
	for _, c := range h.Copies {
		f.related("Copy", c)
	}
	return f
}

func writeHistory(out io.Writer, h deadletters.History, now time.Time) error {
	if err := writeFields(out, EventFields(h), now); err != nil {
		return err
	}
	fmt.Fprintln(out, "\nHistory:")
	if err := writeSteps(out, Steps(h)); err != nil {
		return err
	}
	if h.Event != nil {
		return WriteContent(out, h.Event.Content)
	}
	return nil
}

// WriteContent writes payload and headers, or why they are not there. It fails when out does.
func WriteContent(out io.Writer, c deadletters.Content) error {
	if c.PayloadOmitted != "" {
		fmt.Fprintln(out, "\nThe payload is not shown: "+c.PayloadOmitted)
	}
	for _, part := range []struct {
		name string
		text json.RawMessage
	}{{"Headers", c.Headers}, {"Payload", c.Payload}} {
		if part.text == nil {
			continue
		}
		text, err := JSON(part.text)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "\n%s:\n%s", part.name, text)
	}
	return nil
}

// CauseOf joins the parts of a cause.
func CauseOf(c dispatcher.Cause) string {
	return dash(Line(c.Class + " " + c.Code + " " + c.Place))
}

// Aggregate is what an event is about, as TYPE/ID.
func Aggregate(kind, id string) string {
	if kind == "" || id == "" {
		return kind + id
	}
	return kind + "/" + id
}

func dash(text string) string {
	if text = Line(text); text == "" {
		return "-"
	}
	return text
}

// Line makes one line of a text, without control characters.
func Line(text string) string {
	return strings.Join(strings.FieldsFunc(strings.ToValidUTF8(text, "?"), func(r rune) bool {
		return unicode.IsSpace(r) || !unicode.IsPrint(r)
	}), " ")
}

// Quote is a text as a word of a shell.
func Quote(text string) string {
	if text != "" && strings.Trim(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:@") == "" {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// truncated is one line of at most width characters.
func truncated(text string, width int) string {
	runes := []rune(Line(text))
	if len(runes) > width {
		runes = append(runes[:width-1], '…')
	}
	return dash(string(runes))
}

func stamp(at time.Time) string { return at.UTC().Format(time.RFC3339) }

// ago returns how far a time is from now, in brackets.
func ago(at, now time.Time) string {
	if at.After(now) {
		return " (in " + Age(now, at) + ")"
	}
	return " (" + Age(at, now) + " ago)"
}

// Age is the time since then in one number, as kubectl writes it.
func Age(at, now time.Time) string {
	d := max(now.Sub(at), 0)
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}
