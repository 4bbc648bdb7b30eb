package console

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters/deadcmd"
)

// within bounds what one page reads.
const within = 30 * time.Second

// Console makes the pages.
type Console struct {
	Backend
	// Where is the cluster and the user, or the file: each page has it.
	Where string
	// Now defaults to time.Now.
	Now func() time.Time

	below string // the path of all pages, which others do not know
}

// Handler serves the pages, without what keeps others out: see [Console.Guarded].
func (c *Console) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /style.css", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/css; charset=utf-8")
		_, _ = w.Write(style)
	})
	const at = "/d/{namespace}/{name}"
	for pattern, show := range map[string]func(*view, context.Context) error{
		"GET /{$}": (*view).fleet, "GET " + at: (*view).report, "GET " + at + "/groups": reading((*view).groups), "GET " + at + "/dead": reading((*view).dead),
		"GET " + at + "/dead/{id}": reading((*view).show), "GET " + at + "/events": reading((*view).event), "GET " + at + "/replays": (*view).replays,
		"GET " + at + "/replays/{id}": (*view).replay, "GET " + at + "/try": (*view).try, "POST " + at + "/replays": (*view).begin, "POST " + at + "/replays/{id}/stop": (*view).stop,
		"POST " + at + "/state": (*view).setState,
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { c.page(w, r, show) })
	}
	return mux
}

func (c *Console) page(w http.ResponseWriter, r *http.Request, show func(*view, context.Context) error) {
	ctx, cancel := context.WithTimeout(r.Context(), within)
	defer cancel()
	v := &view{Console: c, r: r, now: time.Now(), name: Name{r.PathValue("namespace"), r.PathValue("name")}}
	if c.Now != nil {
		v.now = c.Now()
	}
	if v.name.Name != "" {
		v.crumb(v.name.String(), v.path())
	}
	var err error
	if v.query, err = url.ParseQuery(r.URL.RawQuery); err != nil { // a part of an address is another one
		err = deadletters.Invalid(fmt.Errorf("the address is not whole: %w; use the links of the pages", err))
	} else {
		err = show(v, ctx)
	}
	if err != nil {
		v.fail(err)
	}
	if v.to != "" {
		http.Redirect(w, r, string(v.to), http.StatusSeeOther)
		return
	}
	v.send(w)
}

// fail makes the page of an error.
func (v *view) fail(err error) {
	v.Reset()
	v.lead, v.refresh, v.to, v.status, v.title = "", false, "", http.StatusBadGateway, "This could not be read"
	switch {
	case errors.Is(err, deadletters.ErrNotFound):
		v.status, v.title = http.StatusNotFound, "Not found"
	case errors.Is(err, deadletters.ErrInvalidRequest):
		v.status, v.title = http.StatusBadRequest, "This request is not valid"
	case v.r.Method == http.MethodPost:
		v.title = "This was not done"
	}
	v.add(`<p class="alert" role="alert">%s</p>`, err)
	if v.r.Method == http.MethodGet {
		v.add(`<p><a href="%s">Try again</a></p>`, exact(v.below+v.r.URL.RequestURI()))
	}
}

// fleet says whether events are delivered, and where they are not.
func (v *view) fleet(ctx context.Context) error {
	f, err := v.Fleet(ctx, v.query.Get("next"))
	if err != nil {
		return err
	}
	var parts [3][][]any // need a person, are not observed, and are well
	var sum Backlog
	failing := 0
	for _, r := range f.Reports {
		v.name = Name{r.Namespace, r.Name}
		b := cmp.Or(r.Backlog, &Backlog{})
		pending, dead := number(b.Number(b.Pending)), markup("0")
		if r.Backlog == nil {
			pending, dead = "–", "–"
		}
		if b.Dead > 0 {
			dead = write(`<a href="%s">%s</a>`, v.path("groups"), number(b.Number(b.Dead)))
		}
		how, word := r.how()
		part := 2
		if b.Dead > 0 || slices.ContainsFunc(r.Conditions, func(c Condition) bool { return c.Wrong }) {
			part = 0
		} else if how == unknown {
			part = 1
		}
		if how == bad {
			failing++
		}
		sum.Dead, sum.Estimated = sum.Dead+b.Dead, sum.Estimated || b.Estimated
		parts[part] = append(parts[part], []any{tag(how, word), write(`<a href="%s">%s</a>`, v.path(), v.name), pending, dead, v.age(b.Oldest), cmp.Or(b.ETA, "–"), cmp.Or(b.LimitedBy, "–"), cmp.Or(r.ReadyPods, "–")})
	}
	v.name = Name{}
	v.lead = write("Not delivering: %s · dead events, which wait for a person: %s · not observed: %s", failing, number(sum.Number(sum.Dead)), len(parts[1]))
	switch all := len(f.Reports); {
	case all == 0:
		v.title, v.lead = "No dispatchers here", "An OutboxDispatcher appears here as soon as it is made."
	case len(parts[0]) > 0:
		v.title = fmt.Sprintf("Something to do at %d of %d dispatchers", len(parts[0]), all)
	case len(parts[1]) > 0:
		v.title = fmt.Sprintf("%d of %d dispatchers are not observed", len(parts[1]), all)
	default:
		v.title, v.lead = "Every dispatcher is well", write("%s deliver, or rest on purpose, and no event is dead.", all)
	}
	if f.Note != "" {
		v.add(`<p class="note">%s</p>`, f.Note)
	}
	columns := [][2]string{{"State", "k"}, {"Dispatcher", "k"}, {"Pending", "n"}, {"Dead", "n"}, {"Oldest waits", "n"}, {"ETA", "n"}, {"Limited by", ""}, {"Pods", "n"}}
	v.add(`<div class="same">`)
	for i, caption := range []string{"Need a person", "Not observed", "Well"} {
		v.table(caption, columns, parts[i], "")
	}
	v.add("</div>")
	if f.Next != "" {
		v.add(`<p>%s are on this page. <a rel="next" href="?next=%s">More</a></p>`, len(f.Reports), exact(url.QueryEscape(f.Next)))
	}
	return nil
}

// how is how a dispatcher is, in a word.
func (r Report) how() (t tone, word string) {
	if len(r.Conditions) == 0 || r.Conditions[0].Type != "Ready" {
		return unknown, "NotSeen"
	}
	ready := r.Conditions[0]
	t = map[string]tone{"DeliveringDespiteTrouble": trouble, "Paused": off, "Pausing": off, "ScaledToZero": off}[ready.Reason]
	return cmp.Or(map[string]tone{"False": bad, "Unknown": unknown}[ready.Status], t, good), ready.Reason
}

// report says how a dispatcher is and what to do.
func (v *view) report(ctx context.Context) error {
	r, err := v.Report(ctx, v.name)
	if err != nil {
		return err
	}
	v.title, v.lead = v.name.String(), tag(r.how())
	if len(r.Conditions) > 0 {
		v.lead += write(" %s", r.Conditions[0].Message)
	}
	if b := r.Backlog; b != nil {
		dead := write("%s", number(b.Number(b.Dead)))
		if b.Dead > 0 {
			dead = tag(bad, number(b.Number(b.Dead)))
		}
		counts := []any{"Dead", dead, "Pending", number(b.Number(b.Pending)), "Oldest waits", v.age(b.Oldest), "ETA", cmp.Or(b.ETA, "–"), "Limited by", cmp.Or(b.LimitedBy, "–")}
		if !b.LateSince.IsZero() {
			counts = append(counts, "Late for", v.age(b.LateSince))
		}
		if b.BlockedKeys > 0 {
			counts = append(counts, "Blocked keys", number(b.Number(b.BlockedKeys)))
		}
		if r.Now != nil && r.Now.Data != nil {
			for _, w := range r.Now.Data.Windows {
				counts = append(counts, "Delivered in "+w.Window, number(w.Delivered), "Failed in "+w.Window, number(w.Failed))
			}
		}
		v.numbers(counts...)
	}
	v.hour(r)
	v.add("<h2>What to do</h2>")
	if len(r.ToDo) == 0 {
		v.empty("needs a person: each check is well, and no event is dead.")
	}
	for _, todo := range r.ToDo {
		if v.add(`<div class="todo"><p>%s</p>`, todo.What); todo.Group != "" {
			v.add(`<a class="button" href="%s">See group %s</a>`, v.deadPath(deadletters.Filter{Group: todo.Group}), todo.Group)
		}
		for _, command := range todo.Commands {
			v.line(command)
		}
		v.add("</div>\n")
	}
	v.topics(r)
	rows := [][]any{}
	for _, c := range r.Conditions {
		rows = append(rows, []any{tag(cmp.Or(map[bool]tone{true: bad}[c.Wrong], map[string]tone{"Unknown": unknown}[c.Status], good), c.Type), c.Status, c.Reason, v.age(c.Since), c.Message})
	}
	v.table("What was checked", [][2]string{{"Check", "k"}, {"Status", "k"}, {"Reason", "k"}, {"Since", "n"}, {"In words", "w"}}, rows, "")
	rows = [][]any{}
	for _, p := range r.Pods {
		rows = append(rows, []any{tag(map[bool]tone{true: good, false: bad}[p.Ready], p.Phase), p.Name, p.Restarts, p.Node, v.age(p.Created)})
	}
	v.table("Pods", [][2]string{{"State", "k"}, {"Pod", ""}, {"Restarts", "n"}, {"Node", ""}, {"Age", "n"}}, rows, "")
	v.stateForm(ctx, r)
	return nil
}

// hour draws the last hour: what waited at the end of each minute, and what the process delivered in it.
func (v *view) hour(r Report) {
	if r.Now == nil || r.Now.Hour == nil || len(r.Now.Hour.Pending) == 0 {
		return
	}
	h := r.Now.Hour
	v.add(`<div class="hours">`)
	for _, series := range []struct {
		name string
		tone tone
		of   []int64
	}{{"Pending at the end of each minute", trouble, h.Pending}, {"Delivered in each minute by one pod", good, h.Delivered}} {
		of := series.of[max(0, len(series.of)-status.Minutes):]
		most := slices.Max(append([]int64{1}, of...))
		v.add(`<figure><figcaption>%s: %s</figcaption><svg class="bar hour" viewBox="0 0 600 100" preserveAspectRatio="none" role="img" aria-label="%s: %s">`, series.name, inWords(of), series.name, inWords(of))
		for i, n := range of {
			at := h.Until.Time().Add(time.Duration(i+1-len(of)) * time.Minute).UTC().Format("15:04 UTC")
			if high := (max(n, 0)*100 + most - 1) / most; high > 0 {
				v.add(`<rect class="%s" x="%s" y="%s" width="9" height="%s"><title>%s: %s</title></rect>`, string(series.tone), 10*(status.Minutes-len(of)+i), 100-high, high, at, number(n))
			}
		}
		v.add("</svg></figure>\n")
	}
	v.add("</div>\n")
}

// inWords says what a picture of minutes shows.
func inWords(of []int64) string {
	known := slices.DeleteFunc(slices.Clone(of), func(n int64) bool { return n < 0 })
	if len(known) == 0 {
		return "not known"
	}
	text := fmt.Sprintf("%s at last, %s at most, %s at least in %d minutes", number(known[len(known)-1]), number(slices.Max(known)), number(slices.Min(known)), len(of))
	if unknown := len(of) - len(known); unknown > 0 {
		text += fmt.Sprintf(", not known in %d of them", unknown)
	}
	return text
}

// topics are the counts of each topic, and what limits it.
func (v *view) topics(r Report) {
	if r.Now == nil || r.Now.Backlog == nil {
		v.add(`<p class="note">The topics are not known: %s</p>`, cmp.Or(r.NowUnknown, "they were not counted yet"))
		return
	}
	limits := map[string]string{}
	for _, l := range r.Now.TopicLimits {
		limits[l.Topic] = fmt.Sprintf("%s, %d calls at once", l.LimitedBy, l.Concurrency)
	}
	for _, g := range r.Now.Gated {
		limits[g.Topic] = fmt.Sprintf("paused: no verified consumer of the type %q", g.EventType)
	}
	for _, p := range r.Now.PausedTopics {
		limits[p.Topic] = fmt.Sprintf("paused: %s: %s", p.State, p.Message)
	}
	rows := [][]any{}
	for _, t := range r.Now.Backlog.Topics {
		count := Backlog{Estimated: t.Estimated}.Number
		rows = append(rows, []any{t.Topic, number(count(t.Pending)), number(count(t.Retrying)), number(count(t.Scheduled)), number(count(t.Processing)), number(count(t.Dead)),
			v.age(t.OldestPending.Time()), cmp.Or(limits[t.Topic], "–")})
	}
	v.table("Topics, and what limits each", [][2]string{{"Topic", ""}, {"Pending", "n"}, {"For a retry", "n"}, {"Scheduled", "n"}, {"In delivery", "n"}, {"Dead", "n"}, {"Oldest waits", "n"}, {"Limited by", "w"}}, rows,
		"waits: each event was delivered, or none was enqueued.")
}

// stateForm pauses or resumes, where the user may.
func (v *view) stateForm(ctx context.Context, r Report) {
	if r.State == "" {
		return
	}
	to, command, button := spec.Paused, "pause", "Pause delivery"
	if r.State == string(spec.Paused) {
		to, command, button = spec.Running, "resume", "Resume delivery"
	}
	v.add(`<h2>%s</h2>`, button)
	for _, owner := range r.Owners {
		v.add(`<p class="note">spec.state is also set by %s, which may set it back: change it there too.</p>`, owner)
	}
	if no := v.Rights(ctx, v.name).State; no != "" {
		v.add(`<p class="note">%s</p>`, no)
	} else {
		v.add(`<form method="post" action="%s"><input type="hidden" name="state" value="%s"><button>%s</button></form>`, v.path("state"), string(to), button)
	}
	v.line(v.Line(v.name, command, ""))
}

func (v *view) setState(ctx context.Context) error {
	v.to = v.path()
	err := v.r.ParseForm() // FormValue reads forms of several parts too, and that code is large
	state := spec.State(v.r.PostForm.Get("state"))
	if err != nil || state != spec.Paused && state != spec.Running {
		return deadletters.Invalid(fmt.Errorf("the state is %q; use the button of the page", state))
	}
	return v.SetState(ctx, v.name, state)
}

// reading makes a page of one that reads dead letters.
func reading(show func(*view, context.Context, deadletters.Source) error) func(*view, context.Context) error {
	return func(v *view, ctx context.Context) error {
		source, end, err := v.Open(ctx, v.name)
		if err != nil {
			return err
		}
		defer end()
		return show(v, ctx, source)
	}
}

// show is one dead letter.
func (v *view) show(ctx context.Context, source deadletters.Source) error {
	l, err := source.Show(ctx, v.r.PathValue("id"), v.query.Get("payload") != "")
	if err != nil {
		return err
	}
	v.crumb("Group "+l.Group, v.deadPath(deadletters.Filter{Group: l.Group}))
	v.title, v.lead = strings.TrimRight(fmt.Sprintf("Dead letter %d: %s %s", l.ID, l.Type, deadcmd.Aggregate(l.AggregateType, l.AggregateID)), ": -"), write("%s", l.Error)
	advice := l.Advice
	if l.Resolution != nil {
		advice = "Nothing is to be done: it was " + l.Resolution.What + "."
	}
	v.add(`<div class="todo"><p>%s</p><a class="button" href="%s">See the life of its event</a></div>`, advice, v.path("events")+"?id="+exact(url.QueryEscape(l.Event)))
	v.fields(slices.DeleteFunc(deadcmd.DeadLetterFields(l, v.now), func(f deadcmd.Field) bool { // which the page says already
		return f.Text == "-" || slices.Contains([]string{"Dead letter", "Error", "What to do"}, f.Name) || f.Name == "Resolution" && l.Resolution == nil
	}))
	if len(l.Failures) > 0 {
		v.add("<h2>The last failed attempts</h2>")
		v.life(deadcmd.Failed(l.Failures))
	}
	err = v.content(l.Content)
	v.line(v.Line(v.name, "dead show", fmt.Sprint(l.ID)))
	return err
}

// event is the life of one event.
func (v *view) event(ctx context.Context, source deadletters.Source) error {
	id := v.query.Get("id")
	if id == "" {
		return deadletters.Invalid(errors.New("the id is empty; give an event's id or its dedupe key"))
	}
	h, err := source.Event(ctx, id, v.query.Get("payload") != "")
	if err != nil {
		return err
	}
	v.title, v.lead = "This event is not here any more", tag(off, "Its row is gone: delivered rows are removed after their retention")
	if e := h.Event; e != nil {
		v.title = "This event " + cmp.Or(map[string]string{"pending": "waits", "processing": "is in delivery"}[e.Status], "is "+e.Status)
		v.lead = write("%s <code>%s</code>", tag(cmp.Or(map[string]tone{"delivered": good, "dead": bad}[e.Status], unknown), e.Status), e.ID)
	}
	v.life(deadcmd.Steps(h))
	v.fields(deadcmd.EventFields(h))
	if h.Event != nil {
		err = v.content(h.Event.Content)
	}
	v.line(v.Line(v.name, "events show", deadcmd.Quote(id)))
	return err
}
