package console

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters/deadcmd"
)

// What the form of a replay begins with, until the user says otherwise.
const firstCanary, firstRate = 10, 100

// parse reads a filter, with the names of the pod's endpoint.
func parse(query url.Values) (deadletters.ListRequest, error) {
	r, err := deadletters.ParseRequest(query)
	if err != nil {
		err = deadletters.Invalid(err)
	}
	return r, err
}

// groups are the causes of the open dead letters, or whose they are.
func (v *view) groups(ctx context.Context, source deadletters.Source) error {
	by := deadletters.By(v.query.Get("by"))
	v.add(`<nav class="pick" aria-label="Counted by">By`)
	for _, other := range append([]deadletters.By{""}, deadletters.Groupings...) {
		v.add(` <a href="?by=%s"%s>%s</a>`, other, current(other == by), cmp.Or(other, "cause"))
	}
	v.add("</nav>\n")
	if by != "" {
		return v.counts(ctx, source, by)
	}
	groups, err := source.Groups(ctx, deadletters.Filter{})
	if err != nil {
		return err
	}
	many, _ := total(groups.Groups)
	v.title, v.lead = many+" dead", "A group has one cause. Fix it, then replay the group: a dry run, a canary, then the rest."
	rows := [][]any{}
	for _, g := range groups.Groups {
		rows = append(rows, []any{write(`<a href="%s"><code>%s</code></a>`, v.deadPath(deadletters.Filter{Group: g.Group}), g.Group), number(g.Number()), v.age(g.Since), v.age(g.Last),
			write("%s<br><small>%s</small>", cmp.Or(g.Error, "No error was kept."), causes(g)), g.Advice})
	}
	if len(rows) == 0 {
		v.title, v.lead = "No dead letters", ""
	}
	v.table("Groups, the largest first", [][2]string{{"Group", "k"}, {"Dead", "n"}, {"Since", "n"}, {"Last", "n"}, {"Why", "w"}, {"What to do", "w"}}, rows,
		"waits for a person: each event was delivered, or is still tried.")
	if groups.More {
		v.add(`<p class="note">There are more than %s groups: these were read.</p>`, number(deadletters.MaxGroups))
	}
	return nil
}

func causes(g deadletters.Group) string {
	return fmt.Sprintf("%s · %s · %s", g.Topic, g.Reason, deadcmd.CauseOf(g.Cause))
}

// total is how many dead letters the groups have, and when the last became dead.
func total(groups []deadletters.Group) (many string, last time.Time) {
	var sum deadletters.Group
	for _, g := range groups {
		sum.Count += g.Count
		sum.AtLeast, sum.Estimated = sum.AtLeast || g.AtLeast, sum.Estimated || g.Estimated
		if g.Last.After(last) {
			last = g.Last
		}
	}
	return number(sum.Number()), last
}

func (v *view) counts(ctx context.Context, source deadletters.Source, by deadletters.By) error {
	if err := by.Validate(); err != nil {
		return deadletters.Invalid(err)
	}
	counts, err := source.CountBy(ctx, deadletters.Filter{}, by)
	if err != nil {
		return err
	}
	v.title, v.lead = "Dead letters by "+string(by), "Who is affected, the largest count first."
	rows := [][]any{}
	for _, c := range counts.Counts {
		value := write("%s", cmp.Or(c.Value, "none"))
		if filter := (url.Values{string(by): {c.Value}}); c.Value != "" {
			if _, err := parse(filter); err == nil {
				value = write(`<a href="%s?%s">%s</a>`, v.path("dead"), exact(filter.Encode()), c.Value)
			}
		}
		rows = append(rows, []any{value, number(c.Number()), number(c.Groups), v.age(c.Since), v.age(c.Last)})
	}
	if slices.ContainsFunc(counts.Counts, func(c deadletters.Count) bool { return c.AtLeast }) {
		v.add(`<p class="note">The newest %s are counted, of each group an equal part: a count with a + may have older ones.</p>`, number(deadletters.CountCap))
	}
	v.table("Open dead letters by "+string(by), [][2]string{{strings.ToUpper(string(by[:1])) + string(by[1:]), ""}, {"Dead", "n"}, {"Groups", "n"}, {"Since", "n"}, {"Last", "n"}}, rows, "waits for a person.")
	return nil
}

// dead is a list of dead letters with the forms that act on all that match, not on the page.
func (v *view) dead(ctx context.Context, source deadletters.Source) error {
	chosen, err := parse(v.query)
	if err != nil {
		return err
	}
	page, err := source.List(ctx, chosen)
	if err != nil {
		return err
	}
	v.crumb("Dead letters", v.path("groups"))
	if v.title = "Resolved dead letters"; !chosen.Resolved {
		if err := v.head(ctx, source, chosen.Filter); err != nil {
			return err
		}
	}
	rows := [][]any{}
	for _, l := range page.DeadLetters {
		rows = append(rows, []any{write(`<a href="%s"><code>%s</code></a>`, v.path("dead", fmt.Sprint(l.ID)), l.Event), v.age(l.DeadAt), l.Type, deadcmd.Aggregate(l.AggregateType, l.AggregateID), number(l.Attempts), l.Error})
	}
	v.table("The newest first", [][2]string{{"Event", "k"}, {"Dead for", "n"}, {"Type", "t"}, {"About", "t"}, {"Attempts", "n"}, {"Error", "w one"}}, rows,
		"matches: what was here was replayed, or discarded.")
	if page.Next > 0 {
		chosen.After = page.Next
		v.add(`<p><a rel="next" href="?%s">Older ones</a></p>`, exact(chosen.Values().Encode()))
	}
	return nil
}

// head says how many match, why they are dead and what to do, and has the forms. Their set is what the page counted: what
// becomes dead after its last one stays open.
func (v *view) head(ctx context.Context, source deadletters.Source, f deadletters.Filter) error {
	groups, err := source.Groups(ctx, f)
	if err != nil {
		return err
	}
	many, last := total(groups.Groups)
	if v.title = many + " dead"; f.Group != "" {
		v.title = "Group " + f.Group + ": " + v.title
	}
	if len(groups.Groups) == 1 {
		g := groups.Groups[0]
		v.lead = write("%s<br><small>%s · first %s ago, last %s ago</small>", g.Error, causes(g), v.age(g.Since), v.age(g.Last))
		v.add(`<div class="todo"><p>%s</p></div>`, g.Advice)
	}
	if until := last.Truncate(time.Second).Add(time.Second); f.Until.IsZero() || until.Before(f.Until) {
		f.Until = until
	}
	if len(groups.Groups) > 0 && f.Operation == "" { // by which no command chooses
		v.forms(ctx, f, many, "")
	}
	return nil
}

// forms are those that replay and discard what a filter chooses, with the command line that does the same.
func (v *view) forms(ctx context.Context, f deadletters.Filter, many, why string) {
	if no := v.Rights(ctx, v.name).Replay; no != "" {
		v.add(`<p class="note">%s</p>`, no)
	} else {
		hidden := write(`<input type="hidden" name="filter" value="%s"><input type="hidden" name="once" value="%s"><label class="grow">Why<input name="reason" required maxlength="1024" value="%s" placeholder="such as CHG-812; it stays with each dead letter"></label>`,
			exact(deadletters.ListRequest{Filter: f}.Values().Encode()), rand.Text(), why)
		set := write("All %s that match and became dead before %s UTC. Later ones stay open.", many, f.Until.UTC().Format("2006-01-02 15:04:05"))
		first, then := markup(` class="main"`), markup("") // a dry run, until there was one
		if why != "" {
			first, then = then, first
		}
		v.add(`<form class="act" method="post" action="%s">%s<label>Canary<input name="canary" type="number" min="0" max="10000" value="%s"></label>
<label>Events a second<input name="rate" type="number" min="1" max="100000" value="%s"></label>
<label>Expires<input name="expires" size="6" placeholder="such as 1h"></label>
<button%s name="do" value="dry-replay">Dry run</button><button%s name="do" value="replay">Replay</button><p><small>%s The canary goes first, alone. Where the time of an event is over, Expires is how long it is worth sending again.</small></p></form>
`, v.path("replays"), hidden, firstCanary, firstRate, first, then, set)
		v.add(`<details><summary>Discard them instead</summary><form class="act" method="post" action="%s">%s<button name="do" value="dry-discard">Dry run</button><button name="do" value="discard">Discard</button>
<p><small>%s Their events stay dead, and block their keys no more.</small></p></form></details>
`, v.path("replays"), hidden, set)
	}
	v.add(`<p class="note">The same by hand:</p>`)
	v.line(v.Line(v.name, "dead replay", fmt.Sprintf("%s --canary %d --rate %d --reason WHY --dry-run", arguments(f), firstCanary, firstRate)))
}

// arguments are the flags of a filter.
func arguments(f deadletters.Filter) string {
	values, flags := deadletters.ListRequest{Filter: f}.Values(), []string{}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		flag := name
		if other, ok := map[string]string{"ids": "id", "reason": "dead-reason", "errorContains": "error"}[name]; ok {
			flag = other
		}
		for _, value := range values[name] {
			flags = append(flags, "--"+flag+" "+deadcmd.Quote(value))
		}
	}
	return strings.Join(flags, " ")
}

// begin begins what a form says.
func (v *view) begin(ctx context.Context) error {
	formErr := v.r.ParseForm()
	form := v.r.PostForm
	query, queryErr := url.ParseQuery(form.Get("filter"))
	chosen, err := parse(query)
	if err := errors.Join(formErr, queryErr, err); err != nil {
		return deadletters.Invalid(fmt.Errorf("read the form: %w; load the page again", err))
	}
	action, dry := strings.CutPrefix(form.Get("do"), "dry-")
	r := Request{Action: map[string]spec.ReplayAction{"replay": spec.ActionReplay, "discard": spec.ActionDiscard}[action], DryRun: dry, Filter: chosen.Filter, Reason: strings.TrimSpace(form.Get("reason"))}
	for name, into := range map[string]*int32{"canary": &r.Canary, "rate": &r.Rate} {
		n, e := strconv.ParseInt("0"+form.Get(name), 10, 32)
		*into, err = int32(n), errors.Join(err, e)
	}
	if text := form.Get("expires"); text != "" {
		var e error
		r.Expires, e = time.ParseDuration(text)
		err = errors.Join(err, e)
	}
	if err != nil || r.Action == "" || r.Reason == "" || r.Filter.Until.IsZero() || r.Filter.Resolved || r.Filter.Operation != "" || form.Get("once") == "" {
		return deadletters.Invalid(errors.New("the form is not complete: say why, and use the numbers and the buttons of the page, and for Expires a duration such as 1h; load it again"))
	}
	sum := sha256.Sum256([]byte(form.Encode())) // a form that is sent twice, such as after Back, begins one operation
	r.ID = fmt.Sprintf("%x", sum[:6])
	id, err := v.Begin(ctx, v.name, r)
	v.to = v.path("replays", id)
	return err
}
