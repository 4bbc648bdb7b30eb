package browser_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/hack/testing/browser"
	"github.com/outbox-operator/outbox-operator/hack/testing/envtest"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// pictures is a folder for a picture of each page, wide and narrow, light and dark: PICTURES=DIR go test ./hack/testing/browser
var pictures = os.Getenv("PICTURES")

func TestMain(m *testing.M) { envtest.Main(m) }

// Whoever is on call gets from the alert's link to a canary that runs in a minute and six clicks, and each page on the way is as
// it should be for eyes, keyboards and screen readers. The console, the dispatcher, the database and the API server are real.
func TestFromAlertToCanary(t *testing.T) {
	c := browser.Start(t)
	s := openShop(t)
	begin := time.Now()
	command := runbook(t, "OutboxDeadLettersGrow", `dispatcher (ui) -f FILE`)
	link := s.console(t, s.dispatcher, command, "-f", filepath.Base(s.file))
	c.Open(link)
	c.Clicks++ // the link, in the terminal
	dispatcher := at(c)
	c.Click(".todo a")
	group := at(c)
	c.Focus(`input[name="reason"]`)
	c.Write("CHG-812")
	c.Click(`button[value="dry-replay"]`)
	dry := at(c)
	c.Click(`button[value="replay"]`)
	c.Until(`document.querySelector("main").textContent.includes("The canary: 10 go first")`)
	took := time.Since(begin)
	t.Logf("%v and %d clicks from the alert's link to a canary that runs", took.Round(time.Millisecond), c.Clicks)
	need.That(t, took < time.Minute && c.Clicks <= 6, "it took %v and %d clicks, want a minute and 6 at most", took, c.Clicks)
	c.Until(`document.querySelector("main").textContent.includes("7 delivered, 3 not")`)

	canary, pages := at(c)+"?still", strings.TrimSuffix(dispatcher, "/")
	c.Open(group)
	c.Click("td a")
	one := at(c)
	for _, page := range [][2]string{{"dispatcher", dispatcher}, {"groups", pages + "/groups"}, {"group", group}, {"dead-one", one}, {"event", pages + "/events?id=OrderPlaced-4711"},
		{"dry-run", dry}, {"canary", canary}, {"replays", pages + "/replays"}, {"try", pages + "/try"}} {
		s.look(c, page[0], page[1])
	}
	c.Open(s.console(t, s.plugin, "ui", "--kubeconfig", fleet(t)))
	s.look(c, "fleet", at(c))
}

func at(c *browser.Chromium) string { return browser.Value[string](c, "location.href") }

// runbook returns the arguments of a command on the page that an alert leads to.
func runbook(t *testing.T, alert, command string) string {
	root, err := envtest.Root()
	need.OK(t, err)
	rules, err := os.ReadFile(filepath.Join(root, "config/prometheus/rules.yaml"))
	need.OK(t, err)
	link := regexp.MustCompile(`(?s)alert: ` + alert + `\n.*?runbook_url: https://github\.com/\S+?/blob/main/(\S+)`).FindSubmatch(rules)
	need.Must(t, link != nil, "%s has no link", alert)
	page, err := os.ReadFile(filepath.Join(root, string(link[1])))
	need.OK(t, err)
	found := regexp.MustCompile(command).FindSubmatch(page)
	need.Must(t, found != nil, "%s does not say %s:\n%s", link[1], command, page)
	return string(found[1])
}

// look looks at a page as each reader does, and takes its picture where one is wanted.
func (s *shop) look(c *browser.Chromium, name, address string) {
	for _, width := range []int{1280, 360} {
		about := fmt.Sprintf("%s, %d pixels", name, width)
		c.Look(width, "light")
		c.Open(address)
		for _, colours := range []string{"light", "dark"} {
			c.Look(width, colours)
			for _, wrong := range browser.Value[[]string](c, wrongs) {
				c.Errorf("%s, %s: %s", about, colours, wrong)
			}
			if pictures != "" {
				need.OK(c, errors.Join(os.MkdirAll(pictures, 0o755), os.WriteFile(filepath.Join(pictures, fmt.Sprintf("%s-%d-%s.png", name, width, colours)), c.Picture(), 0o644)))
			}
		}
		c.Press("Tab", 9)
		c.Press("Enter", 13)
		c.Press("Tab", 9)
		need.That(c, browser.Value[bool](c, `!document.querySelector("main a, main button, main input") || document.activeElement.closest("main") && getComputedStyle(document.activeElement).outlineStyle != "none"`),
			"%s: Tab, Enter, Tab leads to %s, want what is first in main, with an outline", about, browser.Value[string](c, "document.activeElement.outerHTML"))
		need.WantAll(c, nil, about+": the browser says %q", c.Errors())
	}
}

// wrongs are what is wrong with a page for eyes, keyboards and screen readers.
const wrongs = `(() => {
	const out = [], all = [...document.querySelectorAll("body *")], say = (what, e) => out.push(what + ": " + e.outerHTML.slice(0, 200))
	if (document.scripts.length) out.push("it has scripts")
	const wide = all.filter(e => e.getBoundingClientRect().right > innerWidth + 1)
	if (document.documentElement.scrollWidth > innerWidth) out.push("it is " + document.documentElement.scrollWidth + " pixels wide, by " + wide.slice(0, 3).map(e => e.outerHTML.slice(0, 200)))
	for (const selector of ["h1", "main", "header", "nav[aria-label]", "title"]) if (!document.querySelector(selector)) out.push("it has no " + selector)
	if (document.querySelectorAll("h1, main").length != 2) out.push("it has more than one h1 or main")
	for (const e of document.querySelectorAll("table")) if (!e.caption) say("a table without caption", e)
	for (const e of document.querySelectorAll("input:not([type=hidden])")) if (!e.labels.length) say("an input without label", e)
	for (const e of document.querySelectorAll("a, button, summary")) if (!(e.textContent.trim() || e.ariaLabel)) say("nothing to read", e)
	for (const e of document.querySelectorAll("td.n, .numbers dd, time")) if (e.getClientRects().length && e.firstChild) {
		const r = document.createRange(); r.selectNodeContents(e)
		if (new Set([...r.getClientRects()].map(r => Math.round(r.bottom / 8))).size > 2) say("a number over several lines", e)
	}
	const number = text => text.match(/[\d.]+/g).map(Number)
	const light = ([r, g, b]) => { const l = [r, g, b].map(v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * l[0] + 0.7152 * l[1] + 0.0722 * l[2] }
	const below = e => { for (; e; e = e.parentElement) { const c = number(getComputedStyle(e).backgroundColor); if (c[3] !== 0) return c } return [255, 255, 255] }
	for (const e of all) if ([...e.childNodes].some(n => n.nodeType == 3 && n.data.trim()) && e.getClientRects().length) {
		const [a, b] = [light(number(getComputedStyle(e).color)), light(below(e))].sort((a, b) => b - a), ratio = (a + 0.05) / (b + 0.05)
		if (ratio < 4.5) say("a contrast of " + ratio.toFixed(2), e)
	}
	return out
})()`
