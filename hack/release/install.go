package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
)

// packed is an archive of the plugin.
type packed struct{ file, program, os, arch string }

// krew writes the plugin's manifest, with the archives' addresses and checksums.
func (r *release) krew(archives []packed) error {
	text, err := os.ReadFile(filepath.Join(r.root, "hack/release/outbox.yaml"))
	if err != nil {
		return err
	}
	var b strings.Builder
	b.WriteString(strings.NewReplacer("VERSION", r.version, "SOURCE", r.source).Replace(string(text)))
	for _, a := range archives {
		fmt.Fprintf(&b, "  - selector: {matchLabels: {os: %s, arch: %s}}\n    uri: %s/releases/download/%s/%s\n    sha256: %s\n    bin: %s\n",
			a.os, a.arch, r.source, r.version, a.file, digest(r.files[a.file]), a.program)
	}
	r.files["outbox.yaml"] = []byte(b.String())
	return nil
}

const chartFolder = "charts/outbox-operator"

// chart packs the chart, which names the image by its digest, and the same as an artifact for a registry.
func (r *release) chart(ctx context.Context, imageDigest string) error {
	names, err := output(ctx, r.root, "git", "ls-files", chartFolder)
	if err != nil {
		return err
	}
	version := strings.TrimPrefix(r.version, "v")
	var entries []entry
	var about []byte
	for _, name := range strings.Fields(names) {
		data, err := os.ReadFile(filepath.Join(r.root, name))
		if err != nil {
			return err
		}
		switch name = strings.TrimPrefix(name, chartFolder+"/"); name {
		case ".helmignore", "files/crds/kustomization.yaml", "files/crds/crds.go":
			continue
		case "Chart.yaml":
			data, err = replaced(name, data,
				"version: 0.0.0", "version: "+version, "appVersion: dev", "appVersion: "+r.version,
				"image: outbox-operator:dev", "image: "+r.image+":"+r.version+"@"+imageDigest,
				`artifacthub.io/prerelease: "true"`, fmt.Sprintf("artifacthub.io/prerelease: %q", fmt.Sprint(strings.Contains(version, "-"))),
				"# `make release VERSION=v1.2.3` sets both. There is no release yet.\n", "")
			about = data
		case "values.yaml":
			data, err = replaced(name, data, "repository: outbox-operator\n", "repository: "+r.image+"\n",
				"None is published yet: build and push one, and name it here.", "That of this chart's version is named by its digest.",
				"\n  digest: \"\"\n", "\n  digest: "+imageDigest+"\n")
		case "README.md":
			data, err = replaced(name, data, "| `image.repository` | `\"outbox-operator\"` |", "| `image.repository` | `\""+r.image+"\"` |",
				"None is published yet: build and push one, and name it here.", "That of this chart's version is named by its digest.",
				"| `image.digest` | `\"\"` |", "| `image.digest` | `\""+imageDigest+"\"` |")
		}
		if err != nil {
			return err
		}
		entries = append(entries, entry{name: "outbox-operator/" + name, data: data})
	}
	chart := zipped(archive(entries...))
	r.files["outbox-operator-"+version+".tgz"] = chart
	var meta map[string]any
	if err := yaml.Unmarshal(about, &meta); err != nil {
		return fmt.Errorf("the chart's Chart.yaml: %w", err)
	}
	config, err := json.Marshal(meta)
	if err != nil {
		return err
	}
	annotations := map[string]string{
		"org.opencontainers.image.title": "outbox-operator", "org.opencontainers.image.version": version,
		"org.opencontainers.image.description": fmt.Sprint(meta["description"]), "org.opencontainers.image.source": r.source,
		"org.opencontainers.image.url": fmt.Sprint(meta["home"]), "org.opencontainers.image.created": r.when(),
	}
	for key, value := range meta["annotations"].(map[string]any) {
		if text := fmt.Sprint(value); strings.HasPrefix(key, "artifacthub.io/") && len(text) < 100 {
			annotations[key] = text
		}
	}
	var l layout
	top := l.manifest(l.blob("application/vnd.cncf.helm.config.v1+json", config), l.blob("application/vnd.cncf.helm.chart.content.v1.tar+gzip", chart), annotations)
	r.files["outbox-operator-"+version+".oci.tar"] = l.archive(path.Dir(r.image)+"/charts/outbox-operator:"+version, top)
	return nil
}

// replaced replaces each pair's first by its second, and returns an error where the text does not have it once.
func replaced(name string, text []byte, pairs ...string) ([]byte, error) {
	for i := 0; i < len(pairs); i += 2 {
		if n := bytes.Count(text, []byte(pairs[i])); n != 1 {
			return nil, fmt.Errorf("%s has %q %d times, and a release replaces it once: change hack/release with it", name, pairs[i], n)
		}
		text = bytes.Replace(text, []byte(pairs[i]), []byte(pairs[i+1]), 1)
	}
	return text, nil
}

var image = regexp.MustCompile(`(?m)^(\s*(?:- )?image: )outbox-operator:dev$`)

// install writes install.yaml: config/default, with the image by its digest.
func (r *release) install(ctx context.Context, imageDigest string) error {
	kube, err := output(ctx, r.root, "hack/pins/kube/build.sh", "test")
	if err != nil {
		return err
	}
	text, err := output(ctx, r.root, filepath.Join(kube, "kubectl"), "kustomize", "config/default")
	if err != nil {
		return err
	}
	if !image.MatchString(text) {
		return errors.New("config/default has no image outbox-operator:dev, which a release replaces: change hack/release with it")
	}
	text = image.ReplaceAllString(text, "${1}"+r.image+"@"+imageDigest) // as the chart names it: to go from one to the other rolls nothing
	r.files["install.yaml"] = []byte("# outbox-operator " + r.version + ": kubectl apply --server-side -f install.yaml\n" + text + "\n")
	return nil
}
