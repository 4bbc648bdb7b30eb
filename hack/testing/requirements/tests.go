package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// test is a test or a spec.
type test struct {
	name string // TestLegalHoldKeepsRecords, or the words of a spec
	file string // from the root, with slashes
}

var (
	marker  = regexp.MustCompile(`^\s*// REQUIREMENT: (.+)$`)
	comment = regexp.MustCompile(`^\s*//`)
	isTest  = regexp.MustCompile(`^func ((?:Test|Fuzz)\w*)\(`)
	isSpec  = regexp.MustCompile(`\bIt\("([^"]+)"`)
)

// findTests returns the tests that name a requirement, by its id, in the order of their files.
func findTests(root string) (map[string][]test, error) {
	found := map[string][]test{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if slices.Contains([]string{".git", "bin", "node_modules"}, d.Name()) {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		file, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		return testsOf(filepath.ToSlash(file), string(text), found)
	})
	return found, err
}

// testsOf adds the tests of a file that name a requirement. A comment that names one stands right above its test.
func testsOf(file, text string, found map[string][]test) error {
	var ids []string
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimRight(line, "\r\n")
		if names := marker.FindStringSubmatch(line); names != nil {
			ids = append(ids, strings.FieldsFunc(names[1], func(r rune) bool { return r == ',' || r == ' ' })...)
			continue
		}
		if len(ids) == 0 || comment.MatchString(line) {
			continue
		}
		name := isTest.FindStringSubmatch(line)
		if name == nil {
			name = isSpec.FindStringSubmatch(line)
		}
		if name == nil {
			return fmt.Errorf("%s:%d: the comment above names %s, and this is not a test; move the comment to the test", file, n, strings.Join(ids, ", "))
		}
		for _, id := range ids {
			found[id] = append(found[id], test{name[1], file})
		}
		ids = nil
	}
	if len(ids) > 0 {
		return fmt.Errorf("%s: the last comment names %s, and no test follows", file, strings.Join(ids, ", "))
	}
	return nil
}
