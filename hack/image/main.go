// image packs a directory into a container image archive, without a registry and without a
// container engine. The same files make the same archive, byte for byte.
//
//	image TAG OUT.tar DIR ENTRYPOINT
//
// DIR becomes the image's root, owned by root. ENTRYPOINT is a path in the image. The image runs
// as user 65532, and is for Linux on this machine's architecture.
package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

const user = "65532:65532"

func main() {
	if len(os.Args) != 5 {
		fmt.Fprintln(os.Stderr, "usage: image TAG OUT.tar DIR ENTRYPOINT")
		os.Exit(2)
	}
	if err := pack(os.Args[1], os.Args[2], os.Args[3], os.Args[4]); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// pack writes the archive in the format of `docker save`. A broken run leaves no archive.
func pack(tag, out, dir, entrypoint string) error {
	ref, err := name.NewTag(tag)
	if err != nil {
		return fmt.Errorf("%w; give a tag like outbox-operator:dev", err)
	}
	if info, err := os.Stat(filepath.Join(dir, entrypoint)); err != nil || info.Mode()&0o111 == 0 {
		return fmt.Errorf("%s holds no program %s to start the image with", dir, entrypoint)
	}
	files, err := layer(os.DirFS(dir))
	if err != nil {
		return fmt.Errorf("pack %s: %w", dir, err)
	}
	image, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{
		OS: "linux", Architecture: runtime.GOARCH,
		RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{User: user, Entrypoint: []string{entrypoint}},
	})
	if err != nil {
		return err
	}
	if image, err = mutate.AppendLayers(image, files); err != nil {
		return err
	}
	partial := out + ".partial"
	defer os.Remove(partial) // after the rename there is none
	if err := tarball.WriteToFile(partial, ref, image); err != nil {
		return fmt.Errorf("write %s: %w", out, err)
	}
	return os.Rename(partial, out)
}

// layer holds the files, without what differs from run to run: times, owners, the umask.
func layer(files fs.FS) (v1.Layer, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	err := fs.WalkDir(files, ".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case path == ".":
			return nil
		case entry.IsDir():
			return w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: path + "/", Mode: 0o755})
		}
		info, err := fs.Stat(files, path) // follows links: the image holds plain files
		if err != nil {
			return err
		}
		data, err := fs.ReadFile(files, path)
		if err != nil {
			return err
		}
		mode := int64(0o644)
		if info.Mode()&0o111 != 0 {
			mode = 0o755
		}
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: path, Mode: mode, Size: int64(len(data))}); err != nil {
			return err
		}
		_, err = w.Write(data)
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(buf.Bytes())), nil
	})
}
