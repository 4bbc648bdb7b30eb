package console

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters/deadcmd"
)

// replays are what was done with dead letters.
func (v *view) replays(ctx context.Context) error {
	all, err := v.Replays(ctx, v.name)
	if err != nil {
		return err
	}
	under := len(all)
	for _, r := range all {
		if r.Ended {
			under--
		}
	}
	v.title, v.lead = "No replay runs", "Who put what back, why, and what became of it."
	if under > 0 {
		v.title = fmt.Sprintf("Under way: %d of %d replays and discards", under, len(all))
	}
	slices.SortStableFunc(all, func(a, b Replay) int { return b.Began.Compare(a.Began) })
	rows := [][]any{}
	for _, r := range all {
		rows = append(rows, []any{r.tag(), write(`<a href="%s">%s</a>`, v.path("replays", r.ID), r.what()), r.Line, v.age(r.Began), r.By, r.Reason})
	}
	v.table("The newest first", [][2]string{{"State", "k"}, {"What", "k"}, {"Progress", "w"}, {"Began", "n"}, {"By", ""}, {"Why", ""}}, rows,
		"was replayed or discarded here.")
	return nil
}

// what is the operation in words.
func (r Replay) what() string {
	if action := strings.ToLower(r.Action); r.DryRun {
		return "Dry run: " + action
	}
	return strings.ToUpper(r.Action[:1]) + strings.ToLower(r.Action[1:])
}

func (r Replay) tag() markup {
	running := map[bool]tone{false: unknown, true: trouble}[len(r.Why) > 0]
	return tag(cmp.Or(map[bool]tone{true: bad}[r.Failed], map[bool]tone{true: good}[r.Ended], running), r.State)
}

// replay is how far one is. Its page is loaded again while it runs.
func (v *view) replay(ctx context.Context) error {
	all, err := v.Replays(ctx, v.name)
	if err != nil {
		return err
	}
	id, still := v.r.PathValue("id"), v.query.Has("still")
	at := slices.IndexFunc(all, func(r Replay) bool { return r.ID == id })
	if at < 0 {
		return fmt.Errorf("no replay %s: it was stopped and removed, or its time is over: %w", id, deadletters.ErrNotFound)
	}
	r := all[at]
	v.crumb("Replays", v.path("replays"))
	v.title, v.lead, v.refresh = r.what()+" of "+v.name.String(), write("%s %s", r.tag(), r.Line), !r.Ended && !still
	if v.refresh {
		v.add(`<p class="note">This page is loaded again every two seconds. <a href="?still">Hold it still</a></p>`)
	}
	v.progress(r)
	for _, why := range r.Why {
		v.add(`<p class="alert">%s</p>`, why)
	}
	switch {
	case r.DryRun && r.Ended && !r.Failed && r.Progress != nil && r.Progress.Left() > 0 && !r.Filter.Until.IsZero():
		v.add("<h2>Now do it</h2>")
		v.forms(ctx, r.Filter, number(r.Progress.Left()), r.Reason)
	case r.Ended:
		v.add(`<p><a class="button" href="%s">See what is dead now</a></p>`, v.path("groups"))
	default:
		if v.Rights(ctx, v.name).Replay == "" {
			v.add(`<form method="post" action="%s"><button name="do" value="stop">Stop it</button> <small>What was put back stays so, and what waits stays open.</small></form>`, v.path("replays", r.ID, "stop"))
		}
		v.line(v.Line(v.name, "dead stop", deadcmd.Quote(r.ID)))
	}
	v.add("<h2>Who began it, and why</h2>")
	v.fields([]deadcmd.Field{{Name: "Name", Text: r.ID}, {Name: "Began", At: r.Began}, {Name: "By", Text: r.By}, {Name: "Why", Text: r.Reason}})
	return nil
}

func (v *view) stop(ctx context.Context) error {
	v.to = v.path("replays")
	return v.Stop(ctx, v.name, v.r.PathValue("id"))
}

// progress is a bar with its numbers: of a dry run, which moves nothing, the numbers alone.
func (v *view) progress(r Replay) {
	p := r.Progress
	if p == nil || p.Matched == 0 {
		return
	}
	var x int64
	var bar markup
	counts := []any{"Chosen", number(p.Matched)}
	part := func(name string, n int64, t tone) {
		if width := n * 1000 / p.Matched; n > 0 {
			bar += write(`<rect class="%s" x="%s" width="%s" height="10"/>`, string(t), x, width)
			how := write("%s", number(n))
			if t != unknown { // what is not known yet needs no mark
				how = tag(t, number(n))
			}
			x, counts = x+width, append(counts, name, how)
		}
	}
	part("Delivered", p.Delivered, good)
	part("Handled", p.Discarded+p.Reopened, good)
	part("Failing", p.Failing, trouble)
	part("Dead again", p.DeadAgain, bad)
	part("Skipped", p.Matched-p.Done()-p.Left(), off)
	part("Not delivered yet", p.Pending, unknown)
	part(map[bool]string{true: "Would be done", false: "Wait for their turn"}[r.DryRun], p.Left(), unknown)
	if !r.DryRun {
		v.add(`<svg class="bar" viewBox="0 0 1000 10" preserveAspectRatio="none" role="img" aria-label="%s">%s</svg>`, r.Line, bar)
	}
	if !r.Ended && p.EndsAt != 0 {
		counts = append(counts, "Ends", v.age(p.EndsAt.Time()))
	}
	v.numbers(counts...)
	if r.Canary > 0 && !r.Ended && p.Done() <= int64(r.Canary) {
		v.add(`<p class="note">The canary: %s go first, and alone, until their outcome is known.</p>`, r.Canary)
	}
}
