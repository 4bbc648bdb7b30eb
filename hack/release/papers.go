package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// describe writes what is in the release, and how it was made: SPDX, OpenVEX, SLSA.
func (r *release) describe(ctx context.Context) error {
	var err error
	if r.files[r.named("spdx.json")], err = r.spdx(ctx); err != nil {
		return err
	}
	if !r.try {
		r.files[r.named("openvex.json")] = r.vex()
	}
	r.files[r.named("provenance.json")] = r.provenance()
	return nil
}

// purl is the package URL of the release.
func (r *release) purl() string {
	return "pkg:github/" + strings.ToLower(strings.TrimPrefix(r.source, "https://github.com/")) + "@" + r.version
}

var capital = regexp.MustCompile(`[A-Z]`)

// escaped is a module's path or version as the cache and the proxy write it.
func escaped(name string) string {
	return capital.ReplaceAllStringFunc(name, func(c string) string { return "!" + strings.ToLower(c) })
}

// spdx lists the programs, and the modules that the build information of each names: CISA's minimum elements, which are
// the author, the producer, name, version, identifier, hash and licence of each component, what depends on what, the tool,
// the time, and that it was made of the build.
func (r *release) spdx(ctx context.Context) ([]byte, error) {
	cache, err := output(ctx, r.root, "go", "env", "GOMODCACHE")
	if err != nil {
		return nil, err
	}
	licence := map[string]string{}
	for _, m := range r.modules {
		licence[m.Path] = strings.Join(m.spdx, " AND ")
	}
	const producer = "Organization: outbox-operator"
	component := func(id, name, version, supplier, purl, licence, where, hash string) map[string]any {
		c := map[string]any{"SPDXID": id, "name": name, "versionInfo": version, "supplier": supplier, "downloadLocation": where, "filesAnalyzed": false,
			"licenseConcluded": licence, "licenseDeclared": licence, "copyrightText": "NOASSERTION",
			"externalRefs": []any{map[string]any{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": purl}}}
		if hash != "" {
			c["checksums"] = []any{map[string]any{"algorithm": "SHA256", "checksumValue": hash}}
		}
		return c
	}
	std := "pkg:golang/stdlib@" + strings.TrimPrefix(goVersion(), "go")
	components := map[string]map[string]any{std: component("SPDXRef-std", "stdlib", goVersion(), "Organization: The Go Authors", std, "BSD-3-Clause", "https://go.dev/dl/", "")}
	relations := []any{}
	relate := func(from, kind, to string) {
		relations = append(relations, map[string]any{"spdxElementId": from, "relationshipType": kind, "relatedSpdxElement": to})
	}
	for _, p := range r.built {
		id := "SPDXRef-" + strings.TrimSuffix(p.name, ".exe") + "-" + p.os + "-" + p.arch
		purl := r.purl() + "?arch=" + p.arch + "&os=" + p.os + "#" + p.name
		components[id] = component(id, p.name, r.version, producer, purl, "Apache-2.0", r.source+"/releases/tag/"+r.version, digest(p.data))
		components[id]["primaryPackagePurpose"] = "APPLICATION"
		components[id]["description"] = "for " + p.os + "/" + p.arch
		relate("SPDXRef-DOCUMENT", "DESCRIBES", id)
		relate(id, "DEPENDS_ON", "SPDXRef-std")
		for _, m := range p.info.Deps {
			if m.Replace != nil { // a folder of this repository
				continue
			}
			file := escaped(m.Path) + "/@v/" + escaped(m.Version) + ".zip"
			purl := "pkg:golang/" + m.Path + "@" + m.Version
			if components[purl] == nil {
				zip, err := os.ReadFile(filepath.Join(cache, "cache/download", file))
				if err != nil {
					return nil, fmt.Errorf("the archive of %s, whose checksum is in the list of parts: %w; fetch it by: go clean -modcache && go mod download", m.Path, err)
				}
				components[purl] = component(fmt.Sprintf("SPDXRef-module-%s", digest([]byte(purl))[:16]), m.Path, m.Version, "NOASSERTION", purl, licence[m.Path], "https://proxy.golang.org/"+file, digest(zip))
			}
			relate(id, "DEPENDS_ON", components[purl]["SPDXID"].(string))
		}
	}
	list := []any{}
	for _, key := range slices.Sorted(maps.Keys(components)) {
		list = append(list, components[key])
	}
	return jsonOf(map[string]any{
		"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": "outbox-operator " + r.version,
		"documentNamespace": r.source + "/releases/download/" + r.version + "/" + r.named("spdx.json") + "#" + r.commit,
		"creationInfo": map[string]any{"created": r.when(), "creators": []string{producer, "Tool: outbox-operator/hack/release-" + r.version},
			"comment": "Made of the build: from the information that the linker writes into each program."},
		"packages": list, "relationships": relations,
	}), nil
}

// provenance says, as SLSA v1 does, what made each file, and of what.
func (r *release) provenance() []byte {
	subjects := []any{}
	for _, name := range slices.Sorted(maps.Keys(r.files)) {
		subjects = append(subjects, map[string]any{"name": name, "digest": map[string]string{"sha256": digest(r.files[name])}})
	}
	return jsonOf(map[string]any{
		"_type": "https://in-toto.io/Statement/v1", "subject": subjects, "predicateType": "https://slsa.dev/provenance/v1",
		"predicate": map[string]any{
			"buildDefinition": map[string]any{
				"buildType":          r.source + "/blob/" + r.commit + "/hack/release/README.md",
				"externalParameters": map[string]string{"version": r.version, "image": r.image, "source": r.source},
				"resolvedDependencies": []any{
					map[string]any{"uri": "git+" + r.source + "@" + r.commit, "digest": map[string]string{"gitCommit": r.commit}},
					map[string]any{"uri": "https://go.dev/dl/#" + goVersion()},
				},
			},
			"runDetails": map[string]any{"builder": map[string]any{"id": r.source + "/blob/" + r.commit + "/hack/release"}},
		},
	})
}
