// Command requirements prints a page in Markdown: what the documents that the outbox implements require, and the tests that
// prove each. The YAML files here have the requirements, one file for each document. Links are from the top of the
// checkout, where it runs: go run ./hack/testing/requirements.
//
// A test that proves one names it in the comment above it, as `// REQUIREMENT: STORAGE-12, RULE-010-002`; the page lists
// it by its name and file. A requirement has such a test, or says why it is refused, or that it is open.
package main

import (
	"fmt"
	"os"
	"path/filepath"
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
