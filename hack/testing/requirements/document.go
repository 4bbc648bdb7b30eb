package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

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
