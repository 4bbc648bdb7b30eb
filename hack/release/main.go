// Command release makes what a release has, and publishes nothing. The same commit makes the same bytes.
//
//	release VERSION OUT                    a release, as the README of this folder lists it
//	release image NAME OUT.tar             the image of this checkout for this machine's architecture
//	release pack NAME OUT.tar DIR PROGRAM  an image of a folder
//	release licenses OUT                   the texts of the licences of what the programs link
//	release verify                         whether what is linked has only allowed licences and no known vulnerability with a fix
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var o options
	flag.StringVar(&o.image, "image", "ghcr.io/outbox-operator/outbox-operator", "where the image will be: a registry and a name")
	flag.StringVar(&o.source, "source", "https://github.com/outbox-operator/outbox-operator", "where the sources are, and the releases below /releases")
	flag.StringVar(&o.key, "key", "", "file with the ECDSA P-256 private key, in PEM, that signs SHA256SUMS (default none: nothing is signed)")
	flag.BoolVar(&o.try, "try", false, "for this machine's platform alone, by any Go, of changed files too: no release, but quick")
	flag.Parse()
	if err := run(ctx, o, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

var errUsage = errors.New("usage: release [FLAGS] VERSION OUT | image NAME OUT.tar | pack NAME OUT.tar DIR PROGRAM | licenses OUT | verify")

func run(ctx context.Context, o options, args []string) error {
	var err error
	if o.root, err = output(ctx, ".", "go", "list", "-m", "-f", "{{.Dir}}", "github.com/outbox-operator/outbox-operator"); err != nil {
		return err
	}
	switch command := append(args, "")[0]; {
	case command == "image" && len(args) == 3:
		return o.devImage(ctx, args[1], args[2])
	case command == "pack" && len(args) == 5:
		return packImage(args[1], args[2], args[3], args[4], runtime.GOARCH, nil)
	case command == "licenses" && len(args) == 2:
		text, _, err := o.licenses(ctx, systems...)
		if err != nil {
			return err
		}
		return write(args[1], text)
	case command == "verify" && len(args) == 1:
		return o.verify(ctx)
	case len(args) == 2:
		return o.release(ctx, args[0], args[1])
	}
	return errUsage
}

var (
	operator = []string{"./controllers/cmd/manager", "./dispatcher/cmd/dispatcher"} // the programs of the image
	plugin   = "./controllers/cmd/kubectl-outbox"
	programs = append(slices.Clone(operator), plugin)
	systems  = []string{"linux", "darwin", "windows"} // of the plugin
)

// options are the flags, and the checkout.
type options struct {
	root, image, source, key string
	try                      bool
}

// licenses returns the text of LICENSES, one for all programs, and their modules.
func (o options) licenses(ctx context.Context, systems ...string) ([]byte, []linked, error) {
	own, err := os.ReadFile(filepath.Join(o.root, "LICENSE"))
	if err != nil {
		return nil, nil, err
	}
	modules, err := modulesOf(ctx, o.root, systems)
	return licenses(string(own), modules), modules, err
}

// devImage builds the image for this machine, of what is in the checkout.
func (o options) devImage(ctx context.Context, name, out string) error {
	dir, err := os.MkdirTemp("", "outbox-image-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := o.build(ctx, dir+"/", []string{"GOOS=linux"}, operator...); err != nil {
		return err
	}
	text, _, err := o.licenses(ctx, "linux") // the others' modules take time, and no image has them
	if err != nil {
		return err
	}
	if err := write(filepath.Join(dir, "LICENSES"), text); err != nil {
		return err
	}
	return packImage(name, out, dir, "/manager", runtime.GOARCH, nil)
}

// build runs hack/build.sh, which has the flags, with variables of the environment.
func (o options) build(ctx context.Context, out string, env []string, packages ...string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(o.root, "hack/build.sh"), append([]string{out}, packages...)...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("hack/build.sh for %s: %w", strings.Join(env, " "), err)
	}
	return nil
}

// output returns what a program writes, without the newline.
func output(ctx context.Context, dir, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", program, strings.Join(args, " "), err)
	}
	return strings.TrimRight(string(out), "\n"), nil
}

// goVersion is the version of the Go that built this program, without what a distribution adds.
func goVersion() string { return strings.Fields(runtime.Version())[0] }
