package console

import (
	"cmp"
	"context"
	"fmt"
	"net/url"

	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters"
)

// try is what the file would change: past events that come out otherwise with it, before and after.
func (v *view) try(ctx context.Context) error {
	backend, ok := v.Backend.(Tryer)
	if !ok {
		return fmt.Errorf("this console has no file to try: start `dispatcher ui -f FILE`: %w", deadletters.ErrNotFound)
	}
	t, err := backend.Try(ctx, v.name)
	if err != nil {
		return err
	}
	v.title = fmt.Sprintf("%s of %s past events come out otherwise", number(t.Different), number(t.Rows))
	v.lead = write("Created from %s to %s ago, put through the file as it is now, and compared with %s. Nothing was sent.", v.age(t.Oldest), v.age(t.Newest), t.Against)
	if t.Note != "" {
		v.add(`<p class="note">%s</p>`, t.Note)
	}
	rows := [][]any{}
	for _, d := range t.Differences {
		var events markup
		for _, id := range d.Events {
			events += write(`<a href="%s?id=%s"><code>%s</code></a><br>`, v.path("events"), exact(url.QueryEscape(id)), id)
		}
		rows = append(rows, []any{tag(outcomes[d.Before], d.Before), tag(outcomes[d.After], d.After), number(d.Count), d.Topic, d.What, cmp.Or(events, "–")})
	}
	v.table("What differs, the most events first", [][2]string{{"Before", "k"}, {"With the file", "k"}, {"Events", "n"}, {"Topic", ""}, {"What", "w"}, {"Such as", "k"}}, rows,
		"comes out otherwise: the file does with each event what was done before.")
	v.line(v.Line(v.name, "try", t.Command))
	return nil
}

// outcomes are what becomes of an event that is tried.
var outcomes = map[string]tone{"sent": good, "moved": trouble, "changed": trouble, "notTaken": off, "paused": bad, "failed": bad, "dead": bad}
