package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// sources are the documents, in the order of the page: the names of their files here, without .yaml.
var sources = []string{"consumer", "m10", "modkit", "overview", "storage"}

// document is what one document requires.
type document struct {
	// Title of the document, and About says in a few words what it is and which page of ours is about it.
	Title    string    `json:"title"`
	About    string    `json:"about"`
	Sections []section `json:"sections"`
}

// section has the requirements under one of the document's headings.
type section struct {
	Heading      string        `json:"heading"`
	Requirements []requirement `json:"requirements"`
}

// requirement is one line of a document. It has tests, or Refused, or Open: one of the three.
type requirement struct {
	// ID is the document's own, or one of ours that is never used again for something else.
	ID string `json:"id"`
	// Says is what is required, in one sentence.
	Says string `json:"says"`
	// Here is what implements it, or will once it is not open.
	Here string `json:"here,omitempty"`
	// Refused is why nothing implements it.
	Refused string `json:"refused,omitempty"`
	// Open is what is missing. Remove the line when a test names the requirement.
	Open string `json:"open,omitempty"`
}

// load reads the documents from their files in dir.
func load(dir string) (all []document, err error) {
	for _, name := range sources {
		text, err := os.ReadFile(filepath.Join(dir, name+".yaml"))
		if err != nil {
			return nil, err
		}
		var d document
		if err := yaml.UnmarshalStrict(text, &d); err != nil {
			return nil, fmt.Errorf("%s.yaml: %w", name, err)
		}
		all = append(all, d)
	}
	return all, nil
}

// eachRequirement calls do with every requirement.
func eachRequirement(documents []document, do func(requirement)) {
	for _, d := range documents {
		for _, s := range d.Sections {
			for _, r := range s.Requirements {
				do(r)
			}
		}
	}
}

// check returns what is wrong: a requirement that is there twice, says nothing or has nothing, and a test that names an
// unknown one.
func check(documents []document, tests map[string][]test) (err error) {
	wrong := func(format string, args ...any) { err = errors.Join(err, fmt.Errorf(format, args...)) }
	known := map[string]bool{}
	eachRequirement(documents, func(r requirement) {
		if r.ID == "" || known[r.ID] {
			wrong("the id %q is missing or there twice; give %q one that is free", r.ID, r.Says)
		}
		known[r.ID] = true
		proven := len(tests[r.ID]) > 0
		switch {
		case r.Says == "":
			wrong("%s does not say what it requires", r.ID)
		case r.Refused != "" && r.Open != "":
			wrong("%s is refused and open; remove one", r.ID)
		case proven && r.Refused+r.Open != "":
			wrong("%s is named by %s of %s; remove its line refused or open", r.ID, tests[r.ID][0].name, tests[r.ID][0].file)
		case proven && r.Here == "":
			wrong("%s does not say what implements it; add a line here", r.ID)
		case !proven && r.Refused+r.Open == "":
			wrong("no test names %s; add `// REQUIREMENT: %s` above the one that proves it, or a line refused with the reason", r.ID, r.ID)
		}
	})
	for id, named := range tests {
		if !known[id] {
			wrong("%s: %s names %s, which no document here has; correct the id, or add the requirement", named[0].file, named[0].name, id)
		}
	}
	return err
}

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
