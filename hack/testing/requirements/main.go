// Command requirements prints a page in Markdown: what the documents that the outbox implements require, and the tests that
// prove each. The YAML files here have the requirements, one file for each document. Links are from the top of the
// checkout, where it runs: go run ./hack/testing/requirements.
//
// A test that proves one names it in the comment above it, as `// REQUIREMENT: STORAGE-12, RULE-010-002`; the page lists
// it by its name and file. A requirement has such a test, or says why it is refused, or that it is open.
package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

func main() {
	page, err := render(".")
	if err == nil {
		_, err = os.Stdout.Write(page)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "hack/testing/requirements:", err)
		os.Exit(1)
	}
}

// render returns the page of the checkout in root, or everything that is wrong with the requirements and their tests.
func render(root string) ([]byte, error) {
	documents, err := load(filepath.Join(root, "hack", "testing", "requirements"))
	if err != nil {
		return nil, err
	}
	tests, err := findTests(root)
	if err != nil {
		return nil, err
	}
	if err := check(documents, tests); err != nil {
		return nil, err
	}
	return write(documents, tests), nil
}

const introduction = `# What is required, and what proves it

The outbox implements documents that other systems were written for. Each requirement of theirs is a row here: what it
says, what the outbox has for it, and the tests. An id that begins with RULE is the document's own; the others are
ours.

A test that proves a row names it, as ` + "`// REQUIREMENT: %s`" + `. What is refused says why. The rules of this
project itself, and their tests, are [the contract](dispatcher/CONTRACT.md).

| document | requirements | with tests | refused | open |
|---|---|---|---|---|
`

// write returns the page.
func write(documents []document, tests map[string][]test) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, introduction, documents[0].Sections[0].Requirements[0].ID)
	for _, d := range documents {
		var all, proven, refused, open int
		eachRequirement([]document{d}, func(r requirement) {
			all++
			switch {
			case r.Refused != "":
				refused++
			case r.Open != "":
				open++
			default:
				proven++
			}
		})
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %d |\n", d.Title, all, proven, refused, open)
	}
	for _, d := range documents {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n", d.Title, strings.TrimSpace(d.About))
		for _, s := range d.Sections {
			fmt.Fprintf(&b, "\n### %s\n\n| id | requires | here | tests |\n|---|---|---|---|\n", s.Heading)
			for _, r := range s.Requirements {
				fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", r.ID, cell(r.Says), cell(r.implementation()), listed(tests[r.ID]))
			}
		}
	}
	return b.Bytes()
}

func (r requirement) implementation() string {
	switch {
	case r.Refused != "":
		return "**Refused**: " + r.Refused
	case r.Open != "":
		return "**Open**: " + r.Open
	}
	return r.Here
}

// cell is a text as a cell of a table, in one line.
func cell(text string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(text), " "), "|", `\|`)
}

// listed are links to the files of tests.
func listed(tests []test) string {
	links := make([]string, len(tests))
	for i, t := range tests {
		name := "`" + t.name + "`"
		if strings.Contains(t.name, " ") {
			name = "“" + t.name + "”"
		}
		links[i] = fmt.Sprintf("[%s](%s)", cell(name), t.file)
	}
	return strings.Join(links, ", ")
}
