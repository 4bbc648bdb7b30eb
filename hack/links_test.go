package hack

import (
	"net/url"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

var (
	link      = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	heading   = regexp.MustCompile(`(?m)^#+ +(.+?)\s*$`)
	codeBlock = regexp.MustCompile("(?ms)^ *```.*?^ *```")
	notInSlug = regexp.MustCompile(`[^\p{L}\p{N} _-]`)

	code        = regexp.MustCompile("`([^`]+)`")
	placeholder = regexp.MustCompile(`<\w+>|NNNN_name|NAME`)
	testName    = regexp.MustCompile(`^(Test|Fuzz|Benchmark)[A-Z]\w+$`)
	testFunc    = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w+)\(`)
)

// anchors returns what a link to a heading of the page may name after the #, as Git hosts make it.
func anchors(page string) map[string]bool {
	all := map[string]bool{}
	for _, h := range heading.FindAllStringSubmatch(codeBlock.ReplaceAllString(page, ""), -1) {
		all[strings.ReplaceAll(notInSlug.ReplaceAllString(strings.ToLower(h[1]), ""), " ", "-")] = true
	}
	return all
}

// Every relative link of every page leads to a file or folder of the repository, and to a heading that
// is there. hack/testing/requirements prints a page whose links are from the top.
func TestLinksOfPagesLeadSomewhere(t *testing.T) {
	all := files(t, "")
	folders := map[string]bool{".": true}
	for name := range all {
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			folders[dir] = true
		}
	}
	checked := 0
	for name, text := range all {
		from := path.Dir(name)
		switch {
		case from == "hack/testing/requirements":
			from = "."
		case !strings.HasSuffix(name, ".md"):
			continue
		}
		for _, found := range link.FindAllStringSubmatch(codeBlock.ReplaceAllString(text, ""), -1) {
			to, err := url.Parse(found[1])
			if err != nil || to.IsAbs() {
				continue
			}
			checked++
			target := name
			if to.Path != "" {
				target = path.Join(from, to.Path)
			}
			page, isFile := all[target]
			switch {
			case !isFile && !folders[target]:
				t.Errorf("%s links to %s, and there is no %s", name, found[1], target)
			case to.Fragment != "" && strings.HasSuffix(target, ".md") && !anchors(page)[to.Fragment]:
				t.Errorf("%s links to %s, and %s has no such heading", name, found[1], target)
			}
		}
	}
	if checked < 20 {
		t.Errorf("%d links were checked", checked)
	}
}

// Each path from the root, and each test, that a page names as code is there. A path may have a placeholder, as <x>.
func TestPagesNameWhatIsThere(t *testing.T) {
	all := files(t, "")
	paths, roots, tests := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for name, text := range all {
		for p := name; p != "."; p = path.Dir(p) {
			paths[p] = true
		}
		if root, _, inFolder := strings.Cut(name, "/"); inFolder {
			roots[root] = true
		}
		if strings.HasSuffix(name, "_test.go") {
			for _, found := range testFunc.FindAllStringSubmatch(text, -1) {
				tests[found[1]] = true
			}
		}
	}
	there := func(pattern string) bool {
		for p := range paths {
			if ok, err := path.Match(pattern, p); err == nil && ok {
				return true
			}
		}
		return false
	}
	checked := 0
	for name, text := range all {
		if !strings.HasSuffix(name, ".md") {
			continue
		}
		for _, found := range code.FindAllStringSubmatch(codeBlock.ReplaceAllString(text, ""), -1) {
			word, _, _ := strings.Cut(strings.TrimSpace(found[1]), " ")
			root, _, isPath := strings.Cut(word, "/")
			switch {
			case testName.MatchString(word):
				checked++
				if !tests[word] {
					t.Errorf("%s names %s, and there is no such test", name, word)
				}
			case isPath && roots[root]:
				checked++
				if !there(path.Clean(placeholder.ReplaceAllString(word, "*"))) {
					t.Errorf("%s names %s, and there is no such file or folder", name, word)
				}
			}
		}
	}
	if checked < 50 {
		t.Errorf("%d names were checked", checked)
	}
}

// The page of this folder has a line for each folder in it.
func TestFoldersAreListed(t *testing.T) {
	page, err := os.ReadFile("README.md")
	need.OK(t, err)
	entries, err := os.ReadDir(".")
	need.OK(t, err)
	for _, e := range entries {
		if e.IsDir() && !strings.Contains(string(page), "\n| ["+e.Name()+"](") {
			t.Errorf("hack/README.md has no line for %s; say there what it is", e.Name())
		}
	}
}
