package main

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"debug/buildinfo"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// release is one that is being made.
type release struct {
	options
	version, commit string
	date            time.Time // of the commit: no file has another
	dir             string    // of what is built
	built           []program
	parts           // of them
	files           map[string][]byte
}

// program is what is built of a package for a platform.
type program struct {
	name, os, arch string
	data           []byte
	info           *buildinfo.BuildInfo
}

var (
	versions   = regexp.MustCompile(`^v\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$`)
	toolchains = regexp.MustCompile(`(?m)^toolchain (go\S+)$`)
	links      = regexp.MustCompile(`(?m)^\[[^\]]+\]: `)                                                 // of the changelog's versions
	platforms  = []string{"linux/amd64", "linux/arm64", "darwin/amd64", "darwin/arm64", "windows/amd64"} // of the plugin
)

// toolchain is the Go that go.mod pins for releases.
func (o options) toolchain() (string, error) {
	text, err := os.ReadFile(filepath.Join(o.root, "go.mod"))
	if err != nil {
		return "", err
	}
	found := toolchains.FindSubmatch(text)
	if found == nil {
		return "", errors.New("go.mod has no line toolchain, which names the Go of releases")
	}
	return string(found[1]), nil
}

// release makes a release in a folder that is not there yet.
func (o options) release(ctx context.Context, version, out string) error {
	r := release{options: o, version: version, files: map[string][]byte{}}
	if err := r.prepare(ctx, out); err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(r.dir) }()
	for _, step := range []func(context.Context) error{r.inspectParts, r.buildPrograms, r.pack, r.describe} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	if err := r.sign(); err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	for name, data := range r.files {
		if err := write(filepath.Join(out, name), data); err != nil {
			return err
		}
	}
	return nil
}

// prepare refuses what would not be a release, and learns what names it.
func (r *release) prepare(ctx context.Context, out string) (err error) {
	if !versions.MatchString(r.version) {
		return fmt.Errorf("%q is not a version; give one such as v0.1.0: make release VERSION=v0.1.0", r.version)
	}
	if _, err := os.Stat(out); err == nil {
		return fmt.Errorf("%s is there already; remove it first, so that only what this makes is in it", out)
	}
	if r.try {
		platforms = []string{runtime.GOOS + "/" + runtime.GOARCH}
	} else if err := r.exact(ctx); err != nil {
		return err
	}
	about, err := output(ctx, r.root, "git", "log", "-1", "--format=%H %ct")
	if err != nil {
		return err
	}
	commit, seconds, _ := strings.Cut(about, " ")
	unix, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return err
	}
	r.commit, r.date = commit, time.Unix(unix, 0).UTC()
	if err := r.notes(); err != nil {
		return err
	}
	r.dir, err = os.MkdirTemp("", "outbox-release-")
	return err
}

// inspectParts refuses what may not be linked, before anything else takes time.
func (r *release) inspectParts(ctx context.Context) (err error) {
	if r.try { // the scan links the programs once more
		r.texts, r.modules, err = r.licenses(ctx, systems...)
	} else {
		r.parts, err = r.inspect(ctx, r.date.Format(time.DateOnly))
	}
	return err
}

// exact refuses what another build of the commit would not be equal to.
func (r *release) exact(ctx context.Context) error {
	toolchain, err := r.toolchain()
	if err != nil {
		return err
	}
	if goVersion() != toolchain {
		return fmt.Errorf("this is %s, and a release is built by %s, the toolchain of go.mod: run make release, or set GOTOOLCHAIN=%s", goVersion(), toolchain, toolchain)
	}
	changed, err := output(ctx, r.root, "git", "status", "--porcelain")
	if err == nil && changed != "" {
		err = fmt.Errorf("the checkout differs from its commit, so that another build of the commit would differ: commit or stash this first:\n%s", changed)
	}
	return err
}

// named is a file's name with the version.
func (r *release) named(rest string) string { return "outbox-operator_" + r.version + "." + rest }

func (r *release) when() string { return r.date.Format(time.RFC3339) }

// buildPrograms builds all programs for Linux, and the plugin for the others.
func (r *release) buildPrograms(ctx context.Context) error {
	for _, platform := range platforms {
		fmt.Fprintln(os.Stderr, "release: building for", platform)
		goos, goarch, _ := strings.Cut(platform, "/")
		dir, packages := filepath.Join(r.dir, goos+"-"+goarch), []string{plugin}
		if goos == "linux" {
			packages = append(packages, operator...)
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		if err := r.build(ctx, dir+"/", r.environment(goos, goarch), packages...); err != nil {
			return err
		}
		for _, p := range packages {
			name := path.Base(p)
			if goos == "windows" {
				name += ".exe"
			}
			data, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				return err
			}
			info, err := buildinfo.ReadFile(filepath.Join(dir, name))
			if err != nil {
				return err
			}
			r.built = append(r.built, program{name, goos, goarch, data, info})
		}
	}
	return nil
}

// environment has what changes a build, so that the caller's does not.
func (r *release) environment(goos, goarch string) []string {
	return []string{"VERSION=" + r.version, "GOOS=" + goos, "GOARCH=" + goarch, "GOFLAGS=-trimpath", "GOAMD64=v1", "GOARM64=v8.0",
		"GOEXPERIMENT=", "GOFIPS140=off", "GOWORK=off", "GODEBUG=", "TAGS="}
}

// program returns one that was built.
func (r *release) program(name, goos, goarch string) entry {
	for _, p := range r.built {
		if strings.TrimSuffix(p.name, ".exe") == name && p.os == goos && p.arch == goarch {
			return entry{name: p.name, program: true, data: p.data}
		}
	}
	panic("not built: " + name)
}

// pack makes what is installed.
func (r *release) pack(ctx context.Context) error {
	own, err := os.ReadFile(filepath.Join(r.root, "LICENSE"))
	if err != nil {
		return err
	}
	texts := entry{name: "LICENSES", data: r.texts}
	labels := map[string]string{
		"org.opencontainers.image.title":         "outbox-operator",
		"org.opencontainers.image.description":   "The operator and the dispatcher of a transactional outbox in PostgreSQL",
		"org.opencontainers.image.licenses":      "Apache-2.0",
		"org.opencontainers.image.url":           r.source,
		"org.opencontainers.image.source":        r.source,
		"org.opencontainers.image.documentation": r.source + "/blob/" + r.version + "/README.md",
		"org.opencontainers.image.version":       r.version,
		"org.opencontainers.image.revision":      r.commit,
		"org.opencontainers.image.created":       r.when(),
	}
	var l layout
	var images []descriptor
	var plugins []packed
	for _, platform := range platforms {
		goos, goarch, _ := strings.Cut(platform, "/")
		p := r.program("kubectl-outbox", goos, goarch)
		name := fmt.Sprintf("kubectl-outbox_%s_%s_%s.tar.gz", r.version, goos, goarch)
		r.files[name] = zipped(archive(p, entry{name: "LICENSE", data: own}, texts))
		plugins = append(plugins, packed{name, p.name, goos, goarch})
		if goos != "linux" {
			continue
		}
		dispatcher := r.program("dispatcher", goos, goarch)
		r.files[fmt.Sprintf("dispatcher_%s_%s_%s.tar.gz", r.version, goos, goarch)] = zipped(archive(dispatcher, entry{name: "LICENSE", data: own}, texts))
		images = append(images, l.image(goarch, "/manager", labels, dispatcher, r.program("manager", goos, goarch), texts))
	}
	index := l.index(labels, images...)
	r.files[r.named("image.tar")] = l.archive(r.image+":"+r.version, index)
	if err := r.krew(plugins); err != nil {
		return err
	}
	if err := r.chart(ctx, index.Digest); err != nil {
		return err
	}
	return r.install(ctx, index.Digest)
}

// notes are what the changelog says of the version.
func (r *release) notes() error {
	text, err := os.ReadFile(filepath.Join(r.root, ".github/CHANGELOG.md"))
	if err != nil {
		return err
	}
	_, section, ok := strings.Cut(string(text), "\n## ["+strings.TrimPrefix(r.version, "v")+"]")
	if !ok && !r.try {
		return fmt.Errorf(".github/CHANGELOG.md has no section [%s]: write what changes for users", strings.TrimPrefix(r.version, "v"))
	}
	_, section, _ = strings.Cut(section, "\n") // the day
	section, _, _ = strings.Cut(section, "\n## [")
	section = links.Split(section, 2)[0]
	section = strings.ReplaceAll(section, "](../", "]("+r.source+"/blob/"+r.version+"/")
	r.files["NOTES.md"] = []byte(strings.TrimSpace(section) + "\n")
	return nil
}

// sign writes SHA256SUMS of all files, and its signature where there is a key.
func (r *release) sign() error {
	var sums strings.Builder
	for _, name := range slices.Sorted(maps.Keys(r.files)) {
		fmt.Fprintf(&sums, "%s  %s\n", digest(r.files[name]), name)
	}
	r.files["SHA256SUMS"] = []byte(sums.String())
	if r.key == "" {
		return nil
	}
	text, err := os.ReadFile(r.key)
	if err != nil {
		return fmt.Errorf("the key: %w", err)
	}
	key := keyOf(text)
	if key == nil {
		return fmt.Errorf("%s has no unencrypted ECDSA key in PEM; make one by: openssl ecparam -name prime256v1 -genkey -noout -out %s", r.key, r.key)
	}
	sum := sha256.Sum256([]byte(sums.String()))
	signature, err := key.Sign(nil, sum[:], crypto.SHA256) // without a source of chance: the same bytes each time (RFC 6979)
	r.files["SHA256SUMS.sig"] = signature
	return err
}

// keyOf is the first ECDSA key of a text in PEM, in either form that openssl writes; nil where there is none.
func keyOf(text []byte) *ecdsa.PrivateKey {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if key, err := x509.ParseECPrivateKey(block.Bytes); err == nil {
			return key
		}
		other, _ := x509.ParsePKCS8PrivateKey(block.Bytes) // nil where it is none
		if key, ok := other.(*ecdsa.PrivateKey); ok {
			return key
		}
	}
	return nil
}
