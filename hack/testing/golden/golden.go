// Package golden compares what a test made with what was accepted before. A file has many texts: a line "-- NAME --" begins
// one. UPDATE_GOLDEN=1 accepts what the tests make now.
package golden

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

var (
	mu    sync.Mutex // of all files
	begin = regexp.MustCompile(`(?m)^-- (\S+) --\n`)
)

// Check fails the test when got differs from the text with the name in testdata/FILE.
func Check(t testing.TB, file, name, got string) {
	t.Helper()
	mu.Lock()
	defer mu.Unlock()
	if !strings.HasSuffix(got, "\n") {
		got += "\n"
	}
	path := filepath.Join("testdata", file)
	texts := read(t, path)
	if want, ok := texts[name]; ok && got == want {
		return
	}
	if os.Getenv("UPDATE_GOLDEN") == "" {
		t.Errorf("%s of %s is\n%s\nwant\n%s\nUPDATE_GOLDEN=1 go test accepts it", name, path, got, texts[name])
		return
	}
	texts[name] = got
	var all strings.Builder
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		fmt.Fprintf(&all, "-- %s --\n%s", name, texts[name])
	}
	if err := os.WriteFile(path, []byte(all.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Text returns the text with the name in a file.
func Text(t testing.TB, path, name string) string {
	t.Helper()
	text, ok := read(t, path)[name]
	if !ok {
		t.Fatalf("%s has no text %s", path, name)
	}
	return text
}

func read(t testing.TB, path string) map[string]string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil && (!os.IsNotExist(err) || os.Getenv("UPDATE_GOLDEN") == "") {
		t.Fatal(err)
	}
	texts := map[string]string{}
	at := begin.FindAllSubmatchIndex(content, -1)
	for i, m := range at {
		end := len(content)
		if i+1 < len(at) {
			end = at[i+1][0]
		}
		texts[string(content[m[2]:m[3]])] = string(content[m[1]:end])
	}
	return texts
}
