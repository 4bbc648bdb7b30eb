package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// unpacked returns the files of an archive, in its order.
func unpacked(t *testing.T, data []byte) (names []string, content map[string][]byte, modes map[string]int64) {
	t.Helper()
	if unzipped, err := gzip.NewReader(bytes.NewReader(data)); err == nil {
		data, err = io.ReadAll(unzipped)
		need.OK(t, err)
	}
	content, modes = map[string][]byte{}, map[string]int64{}
	for r := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return names, content, modes
		}
		need.OK(t, err)
		need.That(t, h.Uid == 0 && h.ModTime.Unix() == 0, "%s has owner %d and time %s", h.Name, h.Uid, h.ModTime)
		names, modes[h.Name] = append(names, h.Name), h.Mode
		content[h.Name], err = io.ReadAll(r)
		need.OK(t, err)
	}
}

// follow reads the JSON of a blob.
func follow(t *testing.T, content map[string][]byte, name string) (v struct {
	Manifests, Layers []descriptor
	Config            json.RawMessage
	Annotations       map[string]string
}) {
	t.Helper()
	need.OK(t, json.Unmarshal(content[name], &v))
	return v
}

func command(t *testing.T, dir string, env []string, name string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// ran returns what a command that succeeds writes.
func ran(t *testing.T, dir string, env []string, name string, args ...string) string {
	t.Helper()
	out, err := command(t, dir, env, name, args...)
	need.That(t, err == nil, "%s %q: %v: %s", name, args, err, out)
	return out
}

// sources has each file of the image with what it is made of: nothing of the machine that builds is in it.
var sources = map[string]string{
	"manager":    "github.com/outbox-operator/outbox-operator/controllers/cmd/manager",
	"dispatcher": "github.com/outbox-operator/outbox-operator/dispatcher/cmd/dispatcher",
	"LICENSES":   "the modules' texts",
}

// roots is the module that has Mozilla's roots, since the image has no file of them.
const roots = "golang.org/x/crypto/x509roots/fallback"

// The same commit in two folders, by two people with other habits and other roots in their system, is the same bytes; and
// each byte counts. One release serves all that is looked at.
func TestTheSameCommitMakesTheSameBytes(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the programs twice")
	}
	dir := t.TempDir()
	top := strings.TrimSpace(ran(t, ".", nil, "git", "rev-parse", "--show-toplevel"))
	program := filepath.Join(dir, "release")
	ran(t, ".", nil, "go", "build", "-o", program, ".")
	key, public := filepath.Join(dir, "key.pem"), filepath.Join(dir, "outbox.pub")
	ran(t, dir, nil, "openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", key)
	ran(t, dir, nil, "openssl", "ec", "-in", key, "-pubout", "-out", public)
	changes := ran(t, top, nil, "git", "diff", "HEAD")
	var outs []string
	for i, env := range [][]string{{"TZ=UTC", "LC_ALL=C"}, {"TZ=Asia/Kathmandu", "LC_ALL=tr_TR.UTF-8", "SSL_CERT_FILE=" + public, "GOFLAGS=-tags=nocloud", "GOAMD64=v3"}} {
		clone, out := filepath.Join(dir, []string{"a", "a longer/b"}[i]), filepath.Join(dir, []string{"one", "two"}[i])
		ran(t, dir, nil, "git", "clone", "-q", "--shared", top, clone)
		if changes != "" {
			need.OK(t, os.WriteFile(filepath.Join(dir, "changes"), []byte(changes), 0o600))
			ran(t, clone, nil, "git", "apply", filepath.Join(dir, "changes"))
		}
		umask := []string{"umask 022; ", "umask 077; "}[i]
		ran(t, clone, env, "sh", "-c", umask+`exec "$0" -try -key "$1" v0.1.0 "$2"`, program, key, out)
		outs = append(outs, out)
	}
	files := map[string][]byte{}
	names, err := os.ReadDir(outs[0])
	need.OK(t, err)
	for _, f := range names {
		one, err := os.ReadFile(filepath.Join(outs[0], f.Name()))
		need.OK(t, err)
		two, err := os.ReadFile(filepath.Join(outs[1], f.Name()))
		need.OK(t, err)
		if files[f.Name()] = one; !bytes.Equal(one, two) {
			t.Errorf("%s differs", f.Name())
		}
	}
	t.Run("the image", func(t *testing.T) { imageHasItsSources(t, files) })
	t.Run("the chart", func(t *testing.T) { chartNamesTheImage(t, files, outs[0]) })
	t.Run("the plugin", func(t *testing.T) { manifestFitsTheArchive(t, files) })
	t.Run("the papers", func(t *testing.T) { papersNameTheParts(t, files) })
	t.Run("the sums", func(t *testing.T) { eachByteCounts(t, outs[0], public, slices.Collect(maps.Keys(files))) })
}

func imageHasItsSources(t *testing.T, files map[string][]byte) {
	_, blobs, _ := unpacked(t, files["outbox-operator_v0.1.0.image.tar"])
	top := follow(t, blobs, "index.json").Manifests[0]
	images := follow(t, blobs, blobName(top)).Manifests
	need.That(t, len(images) == 1 && images[0].Platform["architecture"] == runtime.GOARCH, "the images are %+v", images)
	manifest := follow(t, blobs, blobName(images[0]))
	need.That(t, manifest.Annotations["org.opencontainers.image.version"] == "v0.1.0", "the annotations are %q", manifest.Annotations)
	_, layer, modes := unpacked(t, blobs[blobName(manifest.Layers[0])])
	for name, data := range layer {
		if sources[name] == "" {
			t.Errorf("the image has %s, and sources does not say what it is made of", name)
			continue
		}
		if name == "LICENSES" {
			need.That(t, modes[name] == 0o644 && bytes.Contains(data, []byte(roots)), "LICENSES does not name %s", roots)
			continue
		}
		info, err := buildinfo.Read(bytes.NewReader(data))
		need.OK(t, err)
		need.That(t, info.Path == sources[name] && modes[name] == 0o755, "%s is built from %s, with mode %o", name, info.Path, modes[name])
		need.That(t, slices.ContainsFunc(info.Deps, func(m *debug.Module) bool { return m.Path == roots }), "%s has no roots: it does not import %s", name, roots)
		for _, m := range info.Deps {
			if m.Replace == nil && !bytes.Contains(layer["LICENSES"], []byte(m.Path+" "+m.Version+"\n")) {
				t.Errorf("LICENSES does not have %s, which %s links", m.Path, name)
			}
		}
	}
	need.That(t, len(layer) == len(sources), "the image has %d files, want those of sources", len(layer))
}

// chartNamesTheImage lets helm and kubectl's parser read what is installed.
func chartNamesTheImage(t *testing.T, files map[string][]byte, dir string) {
	_, blobs, _ := unpacked(t, files["outbox-operator_v0.1.0.image.tar"])
	want := "ghcr.io/outbox-operator/outbox-operator:v0.1.0@" + follow(t, blobs, "index.json").Manifests[0].Digest
	byDigest := strings.Replace(want, ":v0.1.0@", "@", 1)
	need.That(t, strings.Count(string(files["install.yaml"]), "image: "+byDigest+"\n") == 1, "install.yaml does not have the image %s", byDigest)
	helm := strings.TrimSpace(ran(t, ".", nil, "../pins/tool.sh", "helm"))
	out := ran(t, dir, nil, helm, "template", "outbox-operator", "outbox-operator-0.1.0.tgz", "--namespace", "outbox-system")
	need.That(t, strings.Contains(out, "image: "+byDigest+"\n"), "the chart does not install %s", byDigest)
	out = ran(t, dir, nil, helm, "show", "chart", "outbox-operator-0.1.0.tgz")
	for _, line := range []string{"version: 0.1.0", "appVersion: v0.1.0", "artifacthub.io/prerelease: \"false\"", "image: " + want} {
		need.That(t, strings.Contains(out, line+"\n"), "the chart does not say %q:\n%s", line, out)
	}
	_, blobs, _ = unpacked(t, files["outbox-operator-0.1.0.oci.tar"])
	chart := follow(t, blobs, blobName(follow(t, blobs, "index.json").Manifests[0]))
	need.That(t, bytes.Equal(blobs[blobName(chart.Layers[0])], files["outbox-operator-0.1.0.tgz"]), "the chart for a registry is another")
}

func manifestFitsTheArchive(t *testing.T, files map[string][]byte) {
	var m struct { // what krew reads of a manifest
		APIVersion, Kind string
		Metadata         struct{ Name string }
		Spec             struct {
			Version, Homepage, ShortDescription, Description string
			Platforms                                        []struct {
				Selector         struct{ MatchLabels map[string]string }
				URI, SHA256, Bin string
			}
		}
	}
	need.OK(t, yaml.UnmarshalStrict(files["outbox.yaml"], &m))
	need.That(t, m.Spec.Version == "v0.1.0" && len(m.Spec.Platforms) == 1 && len(m.Spec.ShortDescription) <= 60, "the manifest:\n%s", files["outbox.yaml"])
	p := m.Spec.Platforms[0]
	data := files[filepath.Base(p.URI)]
	need.That(t, p.SHA256 == digest(data) && p.Selector.MatchLabels["arch"] == runtime.GOARCH, "the platform is %+v", p)
	names, content, _ := unpacked(t, data)
	need.That(t, slices.Equal(names, []string{"LICENSE", "LICENSES", p.Bin}), "the archive has %q", names)
	program := filepath.Join(t.TempDir(), p.Bin)
	need.OK(t, os.WriteFile(program, content[p.Bin], 0o700))
	out := ran(t, ".", nil, program, "--version")
	need.That(t, strings.Contains(out, "v0.1.0"), "--version: %s", out)
}

func papersNameTheParts(t *testing.T, files map[string][]byte) {
	var parts struct {
		Packages []struct {
			Name, VersionInfo, LicenseConcluded string
			Checksums                           []struct{ ChecksumValue string }
		}
	}
	need.OK(t, json.Unmarshal(files["outbox-operator_v0.1.0.spdx.json"], &parts))
	for _, p := range parts.Packages {
		need.That(t, p.VersionInfo != "" && p.LicenseConcluded != "" && (p.Name == "stdlib" || len(p.Checksums) == 1), "a part misses something: %+v", p)
	}
	var made struct {
		Subject []struct {
			Name   string
			Digest map[string]string
		}
	}
	need.OK(t, json.Unmarshal(files["outbox-operator_v0.1.0.provenance.json"], &made))
	for _, s := range made.Subject {
		need.That(t, s.Digest["sha256"] == digest(files[s.Name]), "the provenance has another digest of %s", s.Name)
	}
	need.That(t, len(parts.Packages) > 80 && len(made.Subject) == len(files)-3, "%d parts, %d subjects of %d files", len(parts.Packages), len(made.Subject), len(files))
}

// offline is the line that checks a release, of the page of this folder.
const offline = `openssl dgst -sha256 -verify "$0" -signature SHA256SUMS.sig SHA256SUMS && sha256sum --check --strict SHA256SUMS`

func eachByteCounts(t *testing.T, dir, public string, names []string) {
	page, err := os.ReadFile("README.md")
	need.OK(t, err)
	need.That(t, bytes.Contains(page, []byte(strings.Replace(offline, `"$0"`, "outbox.pub", 1))), "the page does not have the line that is tried here")
	ran(t, dir, nil, "sh", "-c", offline, public)
	for _, name := range names {
		name = filepath.Join(dir, name)
		data, err := os.ReadFile(name)
		need.OK(t, err)
		data[len(data)/2] ^= 1
		need.OK(t, os.WriteFile(name, data, 0o600))
		if out, err := command(t, dir, nil, "sh", "-c", offline, public); err == nil {
			t.Errorf("%s was altered, and that is accepted: %s", name, out)
		}
		data[len(data)/2] ^= 1
		need.OK(t, os.WriteFile(name, data, 0o600))
	}
}

func TestUnreleasableIsRefused(t *testing.T) {
	o := options{root: t.TempDir()}
	ran(t, o.root, nil, "git", "init", "-q")
	write := func(name, text string) { need.OK(t, os.WriteFile(filepath.Join(o.root, name), []byte(text), 0o600)) }
	for _, c := range []struct{ toolchain, version, out, want string }{
		{goVersion(), "", "none", "give one such as v0.1.0"},
		{goVersion(), "0.1", "none", "give one such as v0.1.0"},
		{goVersion(), "v0.1.0", ".", "remove it first"},
		{"go1.2.3", "v0.1.0", "none", "set GOTOOLCHAIN=go1.2.3"},
		{goVersion(), "v0.1.0", "none", "commit or stash this first:\n?? go.mod"},
	} {
		write("go.mod", "module m\ntoolchain "+c.toolchain+"\n")
		err := o.release(t.Context(), c.version, c.out)
		need.That(t, err != nil && strings.Contains(err.Error(), c.want), "%+v: %v", c, err)
	}
	need.OK(t, os.Mkdir(filepath.Join(o.root, ".github"), 0o700))
	write(".github/CHANGELOG.md", "\n## [0.1.1]\n")
	ran(t, o.root, nil, "git", "add", ".")
	ran(t, o.root, nil, "git", "-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", "m")
	need.Fails(t, "no section [0.1.0]", "the notes: %v, want %q", o.release(t.Context(), "v0.1.0", "none"))
}

func TestImageNeedsItsProgramAndATag(t *testing.T) {
	dir := t.TempDir()
	out := filepath.Join(dir, "image.tar")
	need.OK(t, os.WriteFile(filepath.Join(dir, "manager"), nil, 0o644))
	for name, want := range map[string]string{"outbox-operator:dev": "no program /manager", "localhost:5000/image": "not the name of an image", "": "not the name of an image"} {
		err := packImage(name, out, dir, "/manager", "amd64", nil)
		_, gone := os.Stat(out)
		need.That(t, err != nil && gone != nil && strings.Contains(err.Error(), want), "%q: %v", name, err)
	}
}

func TestVulnerabilitiesWithAFixAreRefused(t *testing.T) {
	finding := func(id, module, fixed, function string) string {
		return `{"osv":{"id":"` + id + `","summary":"words"}}{"finding":{"osv":"` + id + `","fixed_version":"` + fixed + `","trace":[{"module":"` + module +
			`","version":"v1.0.0","package":"` + module + `/p","function":"` + function + `"}]}}`
	}
	for name, c := range map[string]struct{ text, want string }{
		"reachable":     {finding("GO-1", "example.com/m", "v1.2.0", "F"), "GO-1: example.com/m v1.0.0 has a known vulnerability, and p.F of it is linked: words; fixed by: go get example.com/m@v1.2.0"},
		"not reachable": {finding("GO-1", "example.com/m", "v1.2.0", ""), ""},
		"without a fix": {finding("GO-1", "example.com/m", "", "F"), ""},
		"excepted":      {finding("GO-2", "example.com/m", "v1.2.0", "F"), ""},
		"in Go":         {finding("GO-1", "stdlib", "v1.26.11", "F"), "fixed by: go get toolchain@go1.26.11"},
		"in another Go": {finding("GO-1", "stdlib", "v1.26.10", "F"), ""},
	} {
		found := map[string]vuln{}
		need.OK(t, readVulns(c.text, found))
		var vulns []vuln
		for _, h := range found {
			vulns = append(vulns, h)
		}
		err := judge(vulns, map[string]exception{"GO-2": {}}, "go1.26.10")
		need.That(t, len(vulns) == 1 && (err == nil) == (c.want == "") && (err == nil || strings.Contains(err.Error(), c.want)), "%s: %v", name, err)
	}
}

func TestExceptionsHaveAReasonAndAnEnd(t *testing.T) {
	o := options{root: t.TempDir()}
	need.OK(t, os.MkdirAll(filepath.Join(o.root, "hack/release"), 0o700))
	for line, want := range map[string]string{
		"# words\n\nGO-1 2027-01-31 We serve none": "", "GO-1 2027-01-31": "is not ID DATE REASON", "GO-1 soon words": "is not ID DATE REASON", "GO-1 2026-01-31 words": "ended on 2026-01-31",
	} {
		need.OK(t, os.WriteFile(filepath.Join(o.root, "hack/release/exceptions.txt"), []byte(line), 0o600))
		_, err := o.exceptions("2026-12-01")
		need.That(t, (err == nil) == (want == "") && (err == nil || strings.Contains(err.Error(), want)), "%q: %v", line, err)
	}
}

func TestLicencesAreThoseThatAreAllowed(t *testing.T) {
	for text, want := range map[string]string{
		"Permission is hereby granted, free of charge": "",
		"":                    "m@v1 has none of the allowed licences",
		"All rights reserved": "m@v1 has none of the allowed licences",
		"Permission is hereby granted, free of charge\nGNU AFFERO GENERAL PUBLIC LICENSE": `m@v1 has the licence "GNU AFFERO GENERAL PUBLIC"`,
	} {
		m := linked{Path: "m", Version: "v1", Dir: t.TempDir()}
		need.OK(t, os.WriteFile(filepath.Join(m.Dir, "LICENSE"), []byte(text), 0o600))
		need.OK(t, m.read(m.Dir))
		err := check([]linked{m})
		need.That(t, (err == nil) == (want == "") && (err == nil || strings.Contains(err.Error(), want)), "%q: %v", text, err)
	}
}

// A program that links an old module is refused, with the module's name. The scanner and its database are the real ones.
func TestAnOldModuleIsRefused(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the scanner")
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":  "module old\n\ngo 1.26.0\n\nrequire golang.org/x/text v0.3.5\n",
		"main.go": "package main\n\nimport \"golang.org/x/text/language\"\n\nfunc main() { _, _, _ = language.ParseAcceptLanguage(\"en\") }\n",
	} {
		need.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	ran(t, dir, []string{"GOFLAGS=-mod=mod", "CGO_ENABLED=0"}, "go", "build", "-o", "old", ".")
	vulns, err := options{root: "../.."}.vulns(t.Context(), filepath.Join(dir, "old"))
	need.OK(t, err)
	err = judge(vulns, nil, "go1.99.0")
	need.That(t, err != nil && strings.Contains(err.Error(), "go get golang.org/x/text@v0.3.7"), "%d vulnerabilities: %v", len(vulns), err)
}
