// Command requirements writes dispatcher/REQUIREMENTS.md: what the documents require that the outbox answers, and the
// tests that prove each. The YAML files here have the requirements, one file for each document.
//
// A test that proves one names it in the comment above it, as `// REQUIREMENT: STORAGE-12, RULE-010-002`; the page lists
// it by its name and file. A requirement has such a test, or says why it is refused, or that it is open.
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

// page is where the user's page goes.
const page = "dispatcher/REQUIREMENTS.md"

func main() {
	if err := generate("."); err != nil {
		fmt.Fprintln(os.Stderr, "hack/testing/requirements:", err)
		os.Exit(1)
	}
}

// generate works on the checkout in root.
func generate(root string) error {
	text, err := render(root)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(root, page), text, 0o644)
}

// render returns the page, or everything that is wrong with the requirements and their tests.
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
