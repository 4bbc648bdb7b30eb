package main

import (
	"bytes"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

func TestPageHasEachRequirementWithItsTests(t *testing.T) {
	page, err := render(filepath.Join("..", "..", ".."))
	need.OK(t, err)
	documents, err := load(".")
	need.OK(t, err)
	for i, least := range []int{14, 23, 19, 19, 72} {
		n := 0
		eachRequirement(documents[i:i+1], func(r requirement) {
			n++
			row := regexp.MustCompile(`\n\| ` + r.ID + ` \| .+ \| .+ \| (.*) \|\n`).FindSubmatch(page)
			if row == nil || r.Refused+r.Open == "" && !bytes.Contains(row[1], []byte("_test.go)")) {
				t.Errorf("the page has no row of %s with its tests", r.ID)
			}
		})
		if n < least {
			t.Errorf("%s.yaml has %d requirements, want all of its document: at least %d", sources[i], n, least)
		}
	}
}

func TestCheckReportsInvalidRequirements(t *testing.T) {
	one := map[string][]test{"A-1": {{"TestA", "a_test.go"}}}
	for name, c := range map[string]struct {
		requirements []requirement
		tests        map[string][]test
		want         string // a part of the error, or none
	}{
		"proven":              {[]requirement{{ID: "A-1", Says: "s", Here: "h"}}, one, ""},
		"refused":             {[]requirement{{ID: "A-1", Says: "s", Refused: "r"}}, nil, ""},
		"open":                {[]requirement{{ID: "A-1", Says: "s", Open: "o"}}, nil, ""},
		"nothing":             {[]requirement{{ID: "A-1", Says: "s", Here: "h"}}, nil, "no test names A-1"},
		"proven and open":     {[]requirement{{ID: "A-1", Says: "s", Open: "o"}}, one, "A-1 is named by TestA of a_test.go"},
		"proven and refused":  {[]requirement{{ID: "A-1", Says: "s", Refused: "r"}}, one, "A-1 is named by TestA of a_test.go"},
		"refused and open":    {[]requirement{{ID: "A-1", Says: "s", Refused: "r", Open: "o"}}, nil, "refused and open"},
		"proven by nothing":   {[]requirement{{ID: "A-1", Says: "s"}}, one, "what implements it"},
		"without a statement": {[]requirement{{ID: "A-1", Open: "o"}}, nil, "what it requires"},
		"without an id":       {[]requirement{{Says: "s", Open: "o"}}, nil, `"" is missing`},
		"there twice":         {[]requirement{{ID: "A-1", Says: "s", Here: "h"}, {ID: "A-1", Says: "s", Here: "h"}}, one, `"A-1" is missing or there twice`},
		"unknown":             {nil, one, "TestA names A-1"},
	} {
		err := check([]document{{Sections: []section{{Requirements: c.requirements}}}}, c.tests)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestTestsOfReadsTheMarkers(t *testing.T) {
	const names = "// REQUIREMENT: " // which this file does not have at the beginning of a line
	for text, want := range map[string]map[string][]test{
		names + "A-1, A-2\n// and more\nfunc TestA(t *testing.T) {\nfunc TestB(t *testing.T) {\n": {"A-1": {{"TestA", "x"}}, "A-2": {{"TestA", "x"}}},
		names + "A-1\n" + names + "A-2\nfunc FuzzA(f *testing.F) {":                               {"A-1": {{"FuzzA", "x"}}, "A-2": {{"FuzzA", "x"}}},
		"\t" + names + "A-1\n\tIt(\"says so\", Label(\"a\"), func() {":                            {"A-1": {{"says so", "x"}}},
		names + "A-1\n\nfunc TestA(t *testing.T) {":                                               nil,
		names + "A-1\n// and no more\n":                                                           nil,
		names + "A-1\nfunc helper(t *testing.T) {":                                                nil,
	} {
		got := map[string][]test{}
		err := testsOf("x", text, got)
		if (err == nil) != (want != nil) || want != nil && !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %v, %v, want %v", text, got, err, want)
		}
	}
}
