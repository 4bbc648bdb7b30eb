package hack

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// files returns the files of the repository with one of the endings, by path from its root, and their
// text. Folders of tools (.git, bin, node_modules) are left out.
func files(t *testing.T, endings ...string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if slices.Contains([]string{".git", "bin", "node_modules"}, d.Name()) {
				return fs.SkipDir
			}
			return nil
		}
		if !slices.ContainsFunc(endings, func(e string) bool { return strings.HasSuffix(path, e) }) {
			return nil
		}
		text, err := os.ReadFile(path)
		all[filepath.ToSlash(strings.TrimPrefix(path, ".."+string(filepath.Separator)))] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
