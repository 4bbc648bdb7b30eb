package main

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// root makes a directory to pack, with files of the given mode and time.
func root(t *testing.T, program os.FileMode, changed time.Time) string {
	t.Helper()
	dir := t.TempDir()
	files := map[string]os.FileMode{"manager": program, "etc/ssl/certs/ca-certificates.crt": 0o600}
	for path, mode := range files {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("content of "+filepath.Base(path)), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, changed, changed); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func packed(t *testing.T, dir string) []byte {
	t.Helper()
	out := filepath.Join(t.TempDir(), "image.tar")
	if err := pack("outbox-operator:dev", out, dir, "/manager"); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	image, err := tarball.Image(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }, &tag)
	if err != nil {
		t.Fatal(err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if got := config.Config; got.User != "65532:65532" || len(got.Entrypoint) != 1 || got.Entrypoint[0] != "/manager" {
		t.Errorf("the image runs %q as %q, want /manager as 65532:65532", got.Entrypoint, got.User)
	}

	// A pod runs as another user than the owner, so everyone must be able to read and execute.
	want := map[string]int64{"etc": 0o755, "etc/ssl": 0o755, "etc/ssl/certs": 0o755, "etc/ssl/certs/ca-certificates.crt": 0o644, "manager": 0o755}
	files := tar.NewReader(mutate.Extract(image))
	for {
		file, err := files.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if mode, ok := want[file.Name]; !ok || file.Mode != mode || file.Uid != 0 {
			t.Errorf("%s has mode %o and owner %d, want %o and 0", file.Name, file.Mode, file.Uid, mode)
		}
		delete(want, file.Name)
	}
	for missing := range want {
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
