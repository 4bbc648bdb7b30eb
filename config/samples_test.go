package config_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

// The table of samples has each file once, and no other.
func TestSamplesAreListed(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("samples", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	var listed, there []string
	for _, row := range regexp.MustCompile(`(?m)^\| \[([^]]+)\]\(([^)]+)\) \| .+ \|$`).FindAllStringSubmatch(string(text), -1) {
		if listed = append(listed, row[1]); row[1] != row[2] {
			t.Errorf("%s leads to %s", row[1], row[2])
		}
	}
	files, err := os.ReadDir("samples")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if file.Name() != "README.md" {
			there = append(there, file.Name())
		}
	}
	slices.Sort(listed)
	if !slices.Equal(listed, there) {
		t.Errorf("samples/README.md lists %v, and there are %v", listed, there)
	}
}
