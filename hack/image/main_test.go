package main

import (
	"archive/tar"
	"bytes"
	"debug/buildinfo"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// root makes a directory to pack, with files of the given mode and time.
func root(t *testing.T, program os.FileMode, changed time.Time) string {
	t.Helper()
	dir := t.TempDir()
	files := map[string]os.FileMode{"manager": program, "etc/passwd": 0o600}
	for path, mode := range files {
		path = filepath.Join(dir, path)
		ok(t, os.MkdirAll(filepath.Dir(path), 0o700))
		ok(t, os.WriteFile(path, []byte("content of "+filepath.Base(path)), mode))
		ok(t, os.Chtimes(path, changed, changed))
	}
	return dir
}

func packed(t *testing.T, dir string) []byte {
	t.Helper()
	out := filepath.Join(t.TempDir(), "image.tar")
	ok(t, pack("outbox-operator:dev", out, dir, "/manager"))
	data, err := os.ReadFile(out)
	ok(t, err)
	return data
}

func TestTheSameFilesMakeTheSameArchive(t *testing.T) {
	first := packed(t, root(t, 0o755, time.Unix(1e9, 0)))
	second := packed(t, root(t, 0o700, time.Unix(2e9, 0)))
	if !bytes.Equal(first, second) {
		t.Error("two archives of the same files differ")
	}
}

func TestImageHasTheFiles(t *testing.T) {
	data := packed(t, root(t, 0o755, time.Now()))
	tag, err := name.NewTag("outbox-operator:dev")
	ok(t, err)
	image, err := tarball.Image(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }, &tag)
	ok(t, err)
	config, err := image.ConfigFile()
	ok(t, err)
	if got := config.Config; got.User != "65532:65532" || len(got.Entrypoint) != 1 || got.Entrypoint[0] != "/manager" {
		t.Errorf("the image runs %q as %q, want /manager as 65532:65532", got.Entrypoint, got.User)
	}

	// A pod runs as another user than the owner, so everyone must be able to read and execute.
	want := map[string]int64{"etc": 0o755, "etc/passwd": 0o644, "manager": 0o755}
	files := tar.NewReader(mutate.Extract(image))
	for {
		file, err := files.Next()
		if err == io.EOF {
			break
		}
		ok(t, err)
		if mode, ok := want[file.Name]; !ok || file.Mode != mode || file.Uid != 0 {
			t.Errorf("%s has mode %o and owner %d, want %o and 0", file.Name, file.Mode, file.Uid, mode)
		}
		delete(want, file.Name)
	}
	for missing := range want {
		t.Errorf("%s is not in the image", missing)
	}
}

// sources has each file of the image with the package that it is built from: nothing of the machine that builds is in it.
var sources = map[string]string{
	"manager":    "github.com/outbox-operator/outbox-operator/controllers/cmd/manager",
	"dispatcher": "github.com/outbox-operator/outbox-operator/dispatcher/cmd/dispatcher",
}

// roots is the module that has Mozilla's roots, since the image has no file of them.
const roots = "golang.org/x/crypto/x509roots/fallback"

func TestEachFileOfTheImageHasItsSource(t *testing.T) {
	archive := filepath.Join(t.TempDir(), "image.tar")
	if text, err := exec.Command("./build.sh", "outbox-operator:dev", archive).CombinedOutput(); err != nil {
		t.Fatalf("build.sh: %v: %s", err, text)
	}
	image, err := tarball.ImageFromPath(archive, nil)
	ok(t, err)
	for files := tar.NewReader(mutate.Extract(image)); ; {
		file, err := files.Next()
		if err == io.EOF {
			break
		}
		ok(t, err)
		if sources[file.Name] == "" {
			t.Errorf("the image has %s, and sources does not say where it is from", file.Name)
			continue
		}
		program, err := io.ReadAll(files)
		ok(t, err)
		info, err := buildinfo.Read(bytes.NewReader(program))
		if err != nil {
			t.Fatalf("%s: %v", file.Name, err)
		}
		if info.Path != sources[file.Name] {
			t.Errorf("%s is built from %s, want %s", file.Name, info.Path, sources[file.Name])
		}
		if !slices.ContainsFunc(info.Deps, func(m *debug.Module) bool { return m.Path == roots }) {
			t.Errorf("%s has no roots to verify certificates with: it does not import %s", file.Name, roots)
		}
		delete(sources, file.Name)
	}
	for missing := range sources {
		t.Errorf("%s is not in the image", missing)
	}
}

func TestNoProgramNoImage(t *testing.T) {
	dir, out := root(t, 0o644, time.Now()), filepath.Join(t.TempDir(), "image.tar")
	if err := pack("outbox-operator:dev", out, dir, "/manager"); err == nil {
		t.Error("packed an image whose entry point cannot be executed")
	}
	if _, err := os.Stat(out); err == nil {
		t.Error("a failed run left an archive")
	}
}
