// Package commands compares a program's commands and flags with what the repository's pages and texts name.
package commands

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

var (
	code = regexp.MustCompile("(?s)\n```.*?\n```|`[^`\n]+`")
	long = regexp.MustCompile(`--[a-z][a-z0-9-]*`)
	// rows of a page's table of commands, which leaves out the program's name.
	rows   = regexp.MustCompile("(?s)\n\\| command \\|.*?\n\n")
	quoted = regexp.MustCompile("`([^`\n]+)`")
)

// Check fails the test for a command or flag of root that no page below folder names, and for a command or
// flag that the code of a page, backquotes of a source file, or quotes of a help text name and root does not
// have. The page has the table of root's commands.
func Check(t *testing.T, root *cobra.Command, folder, page string) {
	t.Helper()
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	root.InitDefaultVersionFlag()
	texts := read(t, folder)
	documented(t, root, texts)
	for name, text := range texts {
		for _, call := range calls(root.DisplayName(), text, strings.HasSuffix(name, ".md")) {
			exists(t, root, name, call)
		}
	}
	table := rows.FindString(texts[page])
	if table == "" {
		t.Fatalf("%s has no table of commands", page)
	}
	for _, row := range strings.Split(table, "\n| ")[2:] {
		cell, _, _ := strings.Cut(row, " |")
		for _, span := range quoted.FindAllStringSubmatch(cell, -1) {
			exists(t, root, page, span[1])
		}
	}
	for _, cmd := range commands(root) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if strings.Contains(f.Usage, "`") { // between which pflag looks for the name of the value
				t.Errorf("the text of %s --%s has back quotes: %s", cmd.CommandPath(), f.Name, f.Usage)
			}
		})
		help := "\n```\n" + cmd.Example + "\n```\n" + strings.ReplaceAll(strings.ReplaceAll(cmd.Short+cmd.Long, "\n", " "), `"`, "`")
		for _, call := range calls(root.DisplayName(), help, true) {
			exists(t, root, cmd.CommandPath()+" --help", call)
		}
	}
}

// Narrow fails the test for a command of root whose help has a line of more columns.
func Narrow(t *testing.T, root *cobra.Command, columns int) {
	t.Helper()
	for _, cmd := range commands(root) {
		var help strings.Builder
		cmd.SetOut(&help)
		if err := cmd.Help(); err != nil {
			t.Error(err)
		}
		for _, line := range strings.Split(help.String(), "\n") {
			if n := utf8.RuneCountInString(line); n > columns {
				t.Errorf("%s --help has a line of %d columns: %s", cmd.CommandPath(), n, line)
			}
		}
	}
}

// documented fails the test for a command that no page names, and for a flag that is on no page that names its
// command.
func documented(t *testing.T, root *cobra.Command, texts map[string]string) {
	t.Helper()
	for _, cmd := range commands(root) {
		if !cmd.Runnable() || cmd == root {
			continue
		}
		name := strings.TrimPrefix(cmd.CommandPath(), root.DisplayName()+" ")
		names := regexp.MustCompile("(`|" + root.DisplayName() + " )" + name + `([^\w-]|$)`)
		var pages string
		for file, text := range texts {
			if strings.HasSuffix(file, ".md") && names.MatchString(text) {
				pages += strings.Join(code.FindAllString(text, -1), "\n") + "\n"
			}
		}
		if pages == "" {
			t.Errorf("no page names the command `%s`", cmd.CommandPath())
			continue
		}
		cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			short := f.Shorthand != "" && regexp.MustCompile(`(^|[\s`+"`"+`])-`+f.Shorthand+`\b`).MatchString(pages)
			if f.Name != "help" && !short && !slices.Contains(long.FindAllString(pages, -1), "--"+f.Name) {
				t.Errorf("no page that names `%s` names its flag --%s", cmd.CommandPath(), f.Name)
			}
		})
	}
}

// calls returns the command lines of program that a text has as code.
func calls(program, text string, blocks bool) []string {
	var found []string
	for _, part := range code.FindAllString(text, -1) {
		if !blocks && strings.HasPrefix(part, "\n") {
			continue
		}
		part = strings.ReplaceAll(strings.Trim(part, "`\n"), "\\\n", " ")
		for line := range strings.Lines(part) {
			line = strings.TrimPrefix(strings.TrimSpace(line), "$ ")
			if call, is := strings.CutPrefix(line, program+" "); is {
				found = append(found, call)
			}
		}
	}
	return found
}

// exists fails the test unless root has the command and the flags of a command line.
func exists(t *testing.T, root *cobra.Command, where, call string) {
	t.Helper()
	call, _, _ = strings.Cut(call, " #")
	call = regexp.MustCompile(` [|><;&].*`).ReplaceAllString(call, "")
	cmd := root
	for _, word := range strings.Fields(call) {
		if !cmd.HasAvailableSubCommands() || strings.HasPrefix(word, "-") || strings.Contains(word, "%") || word == strings.ToUpper(word) {
			break
		}
		i := slices.IndexFunc(cmd.Commands(), func(c *cobra.Command) bool { return c.Name() == strings.TrimRight(word, ".,;:") })
		if i < 0 {
			t.Errorf("%s names `%s %s`, and `%s` has no command %q", where, root.DisplayName(), call, cmd.CommandPath(), word)
			return
		}
		cmd = cmd.Commands()[i]
	}
	for _, flag := range long.FindAllString(call, -1) {
		if flag != "--help" && cmd.Flag(flag[2:]) == nil {
			t.Errorf("%s names `%s %s`, and `%s` has no flag %s", where, root.DisplayName(), call, cmd.CommandPath(), flag)
		}
	}
}

// commands returns root and the commands below it, without those that cobra adds.
func commands(root *cobra.Command) []*cobra.Command {
	all := []*cobra.Command{root}
	for _, cmd := range root.Commands() {
		if cmd.Name() != "help" && cmd.Name() != "completion" {
			all = append(all, commands(cmd)...)
		}
	}
	return all
}

// read returns the pages and sources of the repository, by path.
func read(t *testing.T, folder string) map[string]string {
	t.Helper()
	texts := map[string]string{}
	err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && slices.Contains([]string{".git", "bin", "node_modules"}, d.Name()) {
			return fs.SkipDir
		}
		if d.IsDir() || !slices.Contains([]string{".md", ".go", ".sql", ".yaml", ".tpl", ".txt"}, filepath.Ext(path)) || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		name, _ := filepath.Rel(folder, path)
		texts[filepath.ToSlash(name)] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return texts
}
