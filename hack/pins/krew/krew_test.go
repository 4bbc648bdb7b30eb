// Package krew packs kubectl outbox as krew wants it.
package krew

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// manifest is what krew reads of one.
type manifest struct {
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

func TestArchiveMatchesTheManifest(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the program")
	}
	dir := t.TempDir()
	platform := runtime.GOOS + "/" + runtime.GOARCH
	if out, err := exec.Command("./build.sh", "v0.1.0", dir, platform).CombinedOutput(); err != nil {
		t.Fatalf("build.sh: %v: %s", err, out)
	}
	text, err := os.ReadFile(filepath.Join(dir, "outbox.yaml"))
	need.OK(t, err)
	var m manifest
	if err := yaml.UnmarshalStrict(text, &m); err != nil {
		t.Fatalf("the manifest: %v\n%s", err, text)
	}
	if m.Kind != "Plugin" || m.Metadata.Name != "outbox" || m.Spec.Version != "v0.1.0" || len(m.Spec.Platforms) != 1 || len(m.Spec.ShortDescription) > 60 {
		t.Fatalf("the manifest:\n%s", text)
	}
	p := m.Spec.Platforms[0]
	archive, err := os.ReadFile(filepath.Join(dir, path.Base(p.URI)))
	need.OK(t, err)
	if sum := sha256.Sum256(archive); p.SHA256 != hex.EncodeToString(sum[:]) || p.Selector.MatchLabels["os"] != runtime.GOOS || p.Selector.MatchLabels["arch"] != runtime.GOARCH {
		t.Errorf("the platform is %+v", p)
	}
	names := unpack(t, string(archive), dir)
	need.That(t, slices.Equal(names, []string{"kubectl-outbox", "LICENSE"}), "the archive has %q", names)
	out, err := exec.Command(filepath.Join(dir, p.Bin), "--version").CombinedOutput()
	need.That(t, err == nil && strings.Contains(string(out), "v0.1.0"), "--version: %v: %s", err, out)
}

func unpack(t *testing.T, archive, dir string) (names []string) {
	t.Helper()
	unzipped, err := gzip.NewReader(strings.NewReader(archive))
	need.OK(t, err)
	for files := tar.NewReader(unzipped); ; {
		file, err := files.Next()
		if errors.Is(err, io.EOF) {
			return names
		}
		need.OK(t, err)
		names = append(names, file.Name)
		content, err := io.ReadAll(files)
		need.OK(t, err)
		need.OK(t, os.WriteFile(filepath.Join(dir, path.Base(file.Name)), content, 0o755))
	}
}

func TestVersionNeedsThreeNumbers(t *testing.T) {
	out, err := exec.Command("./build.sh", "1.2", t.TempDir()).CombinedOutput()
	need.That(t, err != nil && strings.Contains(string(out), "give one such as v1.2.3"), "%v: %s", err, out)
}
