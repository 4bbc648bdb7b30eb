package console

import (
	"bytes"
	"cmp"
	"fmt"
	"html"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters/deadcmd"
)

// Bounds of what a page shows of one text, in characters, and of one payload, in bytes.
const maxText, maxPayload = 2000, 256 << 10

// markup is HTML: the compiler takes a constant for it, and no text that a person or a tenant wrote, which write escapes. It does
// without html/template, which calls methods by name: the linker would keep every method of every type, 12 MB of the plugin.
type markup string

// exact is text that is whole or worthless: an address, the value of a hidden field, a command line. write escapes it, and
// shortens nothing.
type exact string

// write is a format with its values: markup as it is, everything else escaped, and texts as people can read them.
func write(format markup, values ...any) markup {
	escaped := make([]any, len(values))
	for i, value := range values {
		switch value := value.(type) {
		case markup:
			escaped[i] = string(value)
		case exact:
			escaped[i] = html.EscapeString(string(value))
		default:
			escaped[i] = html.EscapeString(visible(fmt.Sprint(value)))
		}
	}
	return markup(fmt.Sprintf(string(format), escaped...))
}

// visible is one bounded line of a text, without what no reader sees, such as marks that turn its direction.
func visible(text string) string {
	text = deadcmd.Line(text[:min(len(text), 4*maxText+4)])
	if runes := []rune(text); len(runes) > maxText {
		return string(runes[:maxText]) + "…"
	}
	return text
}

// view is a page in the making.
type view struct {
	bytes.Buffer
	*Console
	r     *http.Request
	query url.Values
	name  Name
	now   time.Time
	title string
	// lead is the sentence below the title. refresh says that the page is loaded again every two seconds.
	lead    markup
	refresh bool
	crumbs  markup
	status  int
	// to is where the browser goes instead, after a form: to load that page again repeats nothing.
	to exact
}

// crumb adds a page above this one.
func (v *view) crumb(text string, path exact) {
	v.crumbs += write(` <span aria-hidden="true">/</span> <a href="%s">%s</a>`, path, text)
}

func (v *view) add(format markup, values ...any) { v.WriteString(string(write(format, values...))) }

// path is the path of a page of the dispatcher.
func (v *view) path(parts ...string) exact {
	path := v.below + v.name.Path()
	for _, part := range parts {
		path += "/" + url.PathEscape(part)
	}
	return exact(path)
}

// deadPath is the page of the dead letters of a filter.
func (v *view) deadPath(f deadletters.Filter) exact {
	return v.path("dead") + "?" + exact(deadletters.ListRequest{Filter: f}.Values().Encode())
}

const document markup = `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">%s<title>%s · %s</title><link rel="stylesheet" href="%s/style.css"></head>
<body><a class="skip" href="#main">Skip to content</a>
<header><nav aria-label="Where you are"><a class="home" href="%s/">Outbox</a>%s</nav><p class="where">%s</p></header>
%s<main id="main"><h1>%s</h1>
<p class="lead">%s</p>
%s</main></body></html>
`

// send sends the page.
func (v *view) send(w http.ResponseWriter) {
	var meta, tabs markup
	if v.refresh {
		meta = `<meta http-equiv="refresh" content="2">`
	}
	if v.name.Name != "" {
		tabs = `<nav class="tabs" aria-label="Pages of the dispatcher">`
		all := [][2]string{{"Overview"}, {"Dead letters", "groups"}, {"Replays", "replays"}}
		if _, ok := v.Backend.(Tryer); ok {
			all = append(all, [2]string{"Try the file", "try"})
		}
		for _, tab := range all {
			path := v.path(slices.DeleteFunc(tab[1:], func(part string) bool { return part == "" })...)
			tabs += write(`<a href="%s"%s>%s</a>`, path, current(string(path) == v.below+v.r.URL.EscapedPath()), tab[0])
		}
		tabs += write(`<form action="%s"><label>Event <input name="id" required placeholder="id or dedupe key" size="20"></label> <button>Find</button></form></nav>`, v.path("events"))
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(cmp.Or(v.status, http.StatusOK))
	_, _ = w.Write([]byte(write(document, meta, v.title, v.Where, exact(v.below), exact(v.below), v.crumbs, v.Where, tabs, v.title, v.lead, markup(v.String())))) // fails only when the reader is gone
}

// current is the attribute of a link that leads to where the reader is.
func current(is bool) markup { return map[bool]markup{true: ` aria-current="page"`}[is] }

// tone says how something is: trouble works, and something is to be done; off is on purpose.
type tone string

const good, trouble, bad, off, unknown tone = "good", "trouble", "bad", "off", "unknown"

// tag is a word with a mark and a colour: never a colour alone.
func tag(t tone, word string) markup {
	mark := map[tone]string{good: "✓", trouble: "!", bad: "✕", off: "‖", unknown: "…"}[t]
	return write(`<span class="tag %s"><span aria-hidden="true">%s</span> %s</span>`, string(t), mark, word)
}

// age is how long ago, or in how long, with the exact time at hand.
func (v *view) age(at time.Time) markup {
	if at.IsZero() {
		return "–"
	}
	text := deadcmd.Age(at, v.now)
	if at.After(v.now.Add(time.Second)) {
		text = "in " + deadcmd.Age(v.now, at)
	}
	return write(`<time datetime="%s" title="%s">%s</time>`, at.UTC().Format(time.RFC3339), at.UTC().Format("2006-01-02 15:04:05 UTC"), text)
}

var digits = regexp.MustCompile(`\d{4,}`)

// number is a count as the commands print it, with commas. An empty one is a dash.
func number(count any) string {
	return digits.ReplaceAllStringFunc(cmp.Or(fmt.Sprint(count), "–"), func(n string) string {
		for at := len(n) - 3; at > 0; at -= 3 {
			n = n[:at] + "," + n[at:]
		}
		return n
	})
}

// table writes rows of cells. columns are pairs of a head and a class: n for numbers, k for what is never broken over lines, t
// for names, w for what needs width, and one for a text of which the first line is enough. On a narrow screen a row is a block.
// Without rows it says what is good about nothing, or is nothing.
func (v *view) table(caption string, columns [][2]string, rows [][]any, good string) {
	if len(rows) == 0 && good != "" {
		v.empty(good)
	}
	if len(rows) == 0 {
		return
	}
	v.add("<table><caption>%s</caption><thead><tr>", caption)
	for _, c := range columns {
		v.add(`<th scope="col" class="%s">%s</th>`, c[1], c[0])
	}
	v.add("</tr></thead><tbody>\n")
	for _, row := range rows {
		v.add("<tr>")
		for i, cell := range row {
			class := columns[i][1]
			if text := fmt.Sprint(cell); text == "–" || text == "" {
				class += " none"
			}
			v.add(`<td class="%s" data-label="%s"><div>%s</div></td>`, class, columns[i][0], cell)
		}
		v.add("</tr>\n")
	}
	v.add("</tbody></table>\n")
}

// fields writes names and values.
func (v *view) fields(fields []deadcmd.Field) {
	v.add("<dl>")
	for _, f := range fields {
		text := write("%s", f.Text)
		if f.Event != "" {
			text = write(`<a href="%s?id=%s">%s</a>`, v.path("events"), exact(url.QueryEscape(f.Event)), text)
		}
		switch v.add("<dt>%s</dt><dd>%s", f.Name, text); {
		case f.At.After(v.now):
			v.add("%s", v.age(f.At))
		case !f.At.IsZero():
			v.add("%s ago", v.age(f.At))
		}
		v.add("</dd>")
	}
	v.add("</dl>\n")
}

// numbers writes counts side by side, from pairs of a name and a value.
func (v *view) numbers(pairs ...any) {
	v.add(`<dl class="numbers">`)
	for i := 0; i < len(pairs); i += 2 {
		v.add("<div><dt>%s</dt><dd>%s</dd></div>", pairs[i], pairs[i+1])
	}
	v.add("</dl>\n")
}

// life writes what happened, in the order of time.
func (v *view) life(steps []deadcmd.Step) {
	v.add(`<ol class="life">`)
	for _, s := range steps {
		what := write("<b>%s</b>", s.What)
		if t, ok := map[string]tone{"delivered": good, "dead": bad, "failed": trouble}[s.What]; ok {
			what = tag(t, s.What)
		}
		v.add(`<li><span class="n">%s ago</span> %s <span>%s</span></li>`, v.age(s.At), what, s.More)
	}
	v.add("</ol>\n")
}

// empty says what is good about nothing.
func (v *view) empty(text string) { v.add(`<p class="empty">%s %s</p>`, tag(good, "Nothing"), text) }

// line writes a command line, which a click selects. One that a person cannot read is not for copying.
func (v *view) line(command string) {
	if strings.Contains(command, "\n") || invisible.MatchString(command) {
		v.add(`<p class="note">A value has characters that cannot be seen: use the command's other filters.</p>`)
		return
	}
	v.add(`<code class="line">%s</code>`, exact(command))
}

// invisible is what no reader sees, such as marks that turn the direction, but for the end of a line.
var invisible = regexp.MustCompile(`[^\PC\n]`)

// content writes payload and headers, or the link that shows them, with escapes for what no reader sees.
func (v *view) content(c deadletters.Content) error {
	if v.query.Get("payload") == "" {
		v.query.Set("payload", "true")
		v.add(`<p><a href="?%s">Show the payload and the headers</a>, which may hold what others near you must not see.</p>`, exact(v.query.Encode()))
		return nil
	}
	var text bytes.Buffer
	if err := deadcmd.WriteContent(&text, c); err != nil {
		return err
	}
	if text.Len() > maxPayload {
		text.Truncate(maxPayload)
		text.WriteString("\n… cut here: the command below has the whole, with --payload")
	}
	shown := invisible.ReplaceAllStringFunc(strings.ToValidUTF8(text.String(), ""), func(r string) string { return strings.Trim(strconv.QuoteToASCII(r), `"`) })
	v.add("%s\n", markup(`<pre tabindex="0">`+html.EscapeString(strings.TrimSpace(shown))+"</pre>"))
	return nil
}
