package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/semver"
)

// vuln is a known vulnerability of a module that is linked. It is reachable when a function of it is in the program.
type vuln struct {
	ID, summary, module, version, fixed string
	reachable                           bool
	function                            string
}

// exception is a line of exceptions.txt: ID DATE REASON.
type exception struct{ until, reason string }

// exceptions reads the vulns that are known to do no harm here, each until a day.
func (o options) exceptions(today string) (map[string]exception, error) {
	text, err := os.ReadFile(filepath.Join(o.root, "hack/release/exceptions.txt"))
	if err != nil {
		return nil, err
	}
	all := map[string]exception{}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		words := append(strings.SplitN(line, " ", 3), "", "")
		if _, e := time.Parse(time.DateOnly, words[1]); e != nil || strings.TrimSpace(words[2]) == "" {
			err = errors.Join(err, fmt.Errorf("exceptions.txt: %q is not ID DATE REASON, such as GO-2026-6603 2027-01-31 We serve no HTTP/2", line))
		} else if words[1] < today {
			err = errors.Join(err, fmt.Errorf("exceptions.txt: the exception of %s ended on %s: fix it, or give it a new day and say why", words[0], words[1]))
		}
		all[words[0]] = exception{words[1], words[2]}
	}
	return all, err
}

// vulns scans programs that have their symbols. The database is a module: it needs no other network than modules do.
func (o options) vulns(ctx context.Context, files ...string) ([]vuln, error) {
	scanner, err := output(ctx, o.root, "hack/pins/tool.sh", "govulncheck")
	if err != nil {
		return nil, err
	}
	database, err := output(ctx, o.root, "hack/pins/tool.sh", "vulndb")
	if err != nil {
		return nil, err
	}
	found := map[string]vuln{}
	for _, file := range files {
		out, err := output(ctx, "", scanner, "-mode=binary", "-format=json", "-db=file://"+database, file)
		if err != nil {
			return nil, err
		}
		if err := readVulns(out, found); err != nil {
			return nil, err
		}
	}
	return slices.SortedFunc(maps.Values(found), func(a, b vuln) int { return strings.Compare(a.ID+a.module, b.ID+b.module) }), nil
}

// readVulns adds what govulncheck wrote. One is reachable when it is in one of the programs.
func readVulns(out string, found map[string]vuln) error {
	summaries := map[string]string{}
	for d := json.NewDecoder(strings.NewReader(out)); d.More(); {
		var m struct {
			OSV     *struct{ ID, Summary string }
			Finding *struct {
				OSV          string
				FixedVersion string `json:"fixed_version"`
				Trace        []struct{ Module, Version, Package, Receiver, Function string }
			}
		}
		if err := d.Decode(&m); err != nil {
			return err
		}
		if m.OSV != nil {
			summaries[m.OSV.ID] = m.OSV.Summary
		}
		if m.Finding == nil {
			continue
		}
		f, t := m.Finding, m.Finding.Trace[0]
		key := f.OSV + " " + t.Module
		if h := found[key]; !h.reachable {
			found[key] = vuln{f.OSV, summaries[f.OSV], t.Module, t.Version, f.FixedVersion, t.Function != "",
				strings.Trim(path.Base(t.Package)+"."+strings.TrimPrefix(t.Receiver+"."+t.Function, "."), ".")}
		}
	}
	return nil
}

// judge returns an error that names each reachable vulnerability that has a fix and no exception. The Go of a release is that of
// go.mod, whichever built the programs that were scanned.
func judge(vulns []vuln, except map[string]exception, release string) (err error) {
	for _, h := range vulns {
		pinned := h.module == "stdlib" && semver.Compare("v"+strings.TrimPrefix(release, "go"), h.fixed) >= 0
		if _, ok := except[h.ID]; !h.reachable || h.fixed == "" || pinned || ok {
			continue
		}
		remedy := "go get " + h.module + "@" + h.fixed
		if h.module == "stdlib" {
			remedy = "go get toolchain@go" + strings.TrimPrefix(h.fixed, "v")
		}
		err = errors.Join(err, fmt.Errorf("%s: %s %s has a known vulnerability, and %s of it is linked: %s; fixed by: %s", h.ID, h.module, h.version, h.function, h.summary, remedy))
	}
	return err
}

// parts are what the programs link, and what is known of it.
type parts struct {
	texts   []byte // of the licences
	modules []linked
	vulns   []vuln
	except  map[string]exception
}

// inspect returns the parts, or an error that names each that a release may not have on the day.
func (o options) inspect(ctx context.Context, today string) (p parts, err error) {
	if p.except, err = o.exceptions(today); err != nil {
		return p, err
	}
	if p.texts, p.modules, err = o.licenses(ctx, systems...); err != nil {
		return p, err
	}
	if p.vulns, err = o.scan(ctx); err != nil {
		return p, err
	}
	pinned, err := o.toolchain()
	if err != nil {
		return p, err
	}
	return p, judge(p.vulns, p.except, pinned)
}

// verify is the part of make verify that looks at what is linked.
func (o options) verify(ctx context.Context) error {
	p, err := o.inspect(ctx, time.Now().UTC().Format(time.DateOnly))
	if err == nil {
		fmt.Printf("%d modules with allowed licences; of %d known vulnerabilities in their versions none is linked that has a fix, but for %d exceptions.\n", len(p.modules)-1, len(p.vulns), len(p.except))
	}
	return err
}

// scan builds the programs with their symbols, and returns the vulns that they have.
func (o options) scan(ctx context.Context) ([]vuln, error) {
	dir, err := os.MkdirTemp("", "outbox-scan-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := o.build(ctx, dir+"/", []string{"SYMBOLS=1", "GOOS=linux", "GOARCH=amd64"}, programs...); err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		return nil, err
	}
	return o.vulns(ctx, files...)
}

// vex is the OpenVEX document: what a scanner that sees modules alone reports, and what is so of it.
func (r *release) vex() []byte {
	statements := []any{}
	for _, h := range r.parts.vulns {
		component := "pkg:golang/" + h.module + "@" + h.version
		s := map[string]any{
			"vulnerability": map[string]any{"@id": "https://pkg.go.dev/vuln/" + h.ID, "name": h.ID, "description": h.summary},
			"products":      []any{map[string]any{"@id": r.purl(), "subcomponents": []any{map[string]any{"@id": component}}}},
		}
		switch e, ok := r.except[h.ID]; {
		case !h.reachable:
			s["status"], s["justification"] = "not_affected", "vulnerable_code_not_present"
			s["impact_statement"] = "No program of this release has a function of it: the linker left them out."
		case ok:
			s["status"], s["justification"], s["impact_statement"] = "not_affected", "vulnerable_code_cannot_be_controlled_by_adversary", e.reason
		default:
			s["status"], s["action_statement"] = "affected", "There is no fix yet; a release follows it."
		}
		statements = append(statements, s)
	}
	return jsonOf(map[string]any{
		"@context": "https://openvex.dev/ns/v0.2.0", "@id": r.source + "/releases/download/" + r.version + "/" + r.named("openvex.json"),
		"author": r.source, "timestamp": r.when(), "version": 1, "tooling": "hack/release, by govulncheck", "statements": statements,
	})
}
