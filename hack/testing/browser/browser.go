// Package browser opens the pages of a console as a browser does, with cookies and forms.
package browser

import (
	"bufio"
	"html"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// Browser has the cookie of a console.
type Browser struct {
	testing.TB
	client *http.Client
	origin string
	below  string // the path of all pages
}

var (
	link   = regexp.MustCompile(`http://127\.0\.0\.1:\d+/\S*token=\S+`)
	forms  = regexp.MustCompile(`(?s)<form[^>]* action="([^"]*)".*?</form>`)
	inputs = regexp.MustCompile(`<(?:input|button)[^>]* name="([^"]*)"(?:[^>]* value="([^"]*)")?`)
)

// Page is a page, and the path where it is after redirects.
type Page struct {
	Code       int
	Path, Text string
}

// Open opens the link that a program writes, and returns the page that it leads to.
func Open(t testing.TB, out io.Reader) (*Browser, Page) {
	t.Helper()
	lines := bufio.NewReader(out)
	line, err := lines.ReadString('\n')
	need.OK(t, err)
	go func() { _, _ = io.Copy(io.Discard, lines) }()
	at, err := url.Parse(link.FindString(line))
	need.OK(t, err)
	jar, _ := cookiejar.New(nil) // it never fails
	b := &Browser{t, &http.Client{Jar: jar}, "http://" + at.Host, "/" + strings.Split(at.Path, "/")[1]}
	b.Get(at.RequestURI())
	return b, b.Get(at.Path)
}

// Get returns a page.
func (b *Browser) Get(path string) Page {
	b.Helper()
	response, err := b.client.Get(b.origin + b.below + strings.TrimPrefix(path, b.below))
	return b.read(response, err)
}

// Submit sends the form with a button of a page, by the button's value, with what a person writes: pairs of a name and a value.
func (b *Browser) Submit(page Page, button string, values ...string) Page {
	b.Helper()
	for _, form := range forms.FindAllStringSubmatch(page.Text, -1) {
		if !strings.Contains(form[0], `value="`+button+`"`) {
			continue
		}
		action, fields := html.UnescapeString(form[1]), url.Values{}
		for _, input := range inputs.FindAllStringSubmatch(form[0], -1) {
			fields.Set(input[1], html.UnescapeString(input[2]))
		}
		if fields.Has("do") {
			fields.Set("do", button)
		}
		for i := 0; i < len(values); i += 2 {
			fields.Set(values[i], values[i+1])
		}
		response, err := b.client.PostForm(b.origin+b.below+action[strings.Index(action, "/d/"):], fields) // the page may be of another console
		return b.read(response, err)
	}
	b.Fatalf("no form has a button %s:\n%s", button, page.Text)
	return Page{}
}

func (b *Browser) read(response *http.Response, err error) Page {
	b.Helper()
	need.OK(b, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	need.OK(b, err)
	return Page{response.StatusCode, strings.TrimPrefix(response.Request.URL.EscapedPath(), b.below), string(body)}
}
