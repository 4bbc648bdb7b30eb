package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// licence is one that what is linked may have, and how its text is known.
type licence struct {
	spdx string
	text *regexp.Regexp
}

// allowed are the licences that require no more than their text.
var allowed = []licence{
	{"Apache-2.0", regexp.MustCompile(`Apache License\s+Version 2\.0|apache\.org/licenses/LICENSE-2\.0`)},
	{"BSD-3-Clause", regexp.MustCompile(`Redistribution and use in source and binary forms[\s\S]*(endorse or promote|to endorse)`)},
	{"BSD-2-Clause", regexp.MustCompile(`Redistribution and use in source and binary forms`)},
	{"MIT", regexp.MustCompile(`Permission is hereby granted, free of charge`)},
	{"ISC", regexp.MustCompile(`Permission to use, copy, modify, and(/or)? distribute this software`)},
}

// refused are words of licences that require more. A file may have several texts.
var refused = regexp.MustCompile(`GNU (AFFERO |LESSER |LIBRARY )?GENERAL PUBLIC|Mozilla Public License|Business Source|Server Side Public|Commons Clause|Eclipse Public`)

// linked is a module that is linked, with the texts of its licences and notices.
type linked struct {
	Path, Version, Dir string
	texts              []string
	spdx               []string
}

// modulesOf returns the modules that are linked into the programs on the systems, Go's library first, with their texts.
func modulesOf(ctx context.Context, root string, systems []string) ([]linked, error) {
	modules, dirs := map[string]*linked{}, map[string]bool{}
	for _, system := range systems {
		list := []string{"GOOS=" + system, "CGO_ENABLED=0", "go", "list", "-deps", "-tags", "grpcnotrace", "-json=Dir,Module,Standard"}
		out, err := output(ctx, root, "env", append(list, programs...)...)
		if err != nil {
			return nil, err
		}
		for d := json.NewDecoder(strings.NewReader(out)); d.More(); {
			var p struct {
				Dir      string
				Standard bool
				Module   *struct {
					linked
					Main    bool
					Replace *struct{ Path string }
				}
			}
			if err := d.Decode(&p); err != nil {
				return nil, err
			}
			if p.Standard || p.Module.Main || p.Module.Replace != nil { // Go's own, or ours
				continue
			}
			if modules[p.Module.Path] == nil {
				modules[p.Module.Path] = &p.Module.linked
			}
			for dir := p.Dir; len(dir) >= len(p.Module.Dir) && !dirs[dir]; dir = filepath.Dir(dir) {
				dirs[dir] = true
				if err := modules[p.Module.Path].read(dir); err != nil {
					return nil, err
				}
			}
		}
	}
	goroot, err := output(ctx, root, "go", "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	std := &linked{Path: "std", Version: goVersion(), Dir: goroot}
	if err := std.read(goroot); err != nil {
		return nil, err
	}
	all := []linked{*std}
	for _, path := range slices.Sorted(maps.Keys(modules)) {
		all = append(all, *modules[path])
	}
	return all, check(all)
}

var named = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|copyright|third.party)`)

// read adds what a folder says of licences.
func (m *linked) read(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() || !named.MatchString(e.Name()) || strings.HasSuffix(e.Name(), ".go") {
			continue
		}
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		m.texts = append(m.texts, strings.ReplaceAll(string(data), "\r\n", "\n"))
		for _, l := range allowed {
			if l.text.Match(data) {
				m.spdx = append(m.spdx, l.spdx)
				break
			}
		}
	}
	slices.Sort(m.spdx)
	m.spdx = slices.Compact(m.spdx)
	return nil
}

// check returns an error that names each module whose licence is none of the allowed ones.
func check(modules []linked) (err error) {
	for _, m := range modules {
		at := -1
		for i, text := range m.texts {
			if refused.MatchString(text) {
				at = i
			}
		}
		switch {
		case at >= 0:
			err = errors.Join(err, fmt.Errorf("%s@%s has the licence %q, which is not allowed: link something else, or request it of the project's owners", m.Path, m.Version, refused.FindString(m.texts[at])))
		case len(m.spdx) == 0:
			err = errors.Join(err, fmt.Errorf("%s@%s has none of the allowed licences in %s: read it, and add it to allowed in hack/release/licenses.go, or link something else", m.Path, m.Version, m.Dir))
		}
	}
	return err
}

// licenses is the file LICENSES: each text once, after the names of the modules that have it.
func licenses(own string, modules []linked) []byte {
	having := map[string][]string{}
	var order []string
	for _, m := range modules {
		for _, text := range m.texts {
			if having[text] == nil {
				order = append(order, text)
			}
			if name := m.Path + " " + m.Version; !slices.Contains(having[text], name) {
				having[text] = append(having[text], name)
			}
		}
	}
	var b strings.Builder
	line := strings.Repeat("=", 80)
	fmt.Fprintf(&b, "outbox-operator, and below it what it links\n%s\n%s\n", line, strings.TrimSpace(own))
	for _, text := range order {
		fmt.Fprintf(&b, "\n%s\n%s\n%s\n%s\n", line, strings.Join(having[text], "\n"), line, strings.TrimSpace(text))
	}
	return []byte(b.String())
}
