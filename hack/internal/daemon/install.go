package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// Install gets one of Debian's packages, unless it is installed by now. Several test processes may
// come here at once: one installs, the others wait and find it. It returns an error without root and apt-get, and when
// the installation fails.
func Install(ctx context.Context, pkg string, installed func() bool) error {
	if _, err := exec.LookPath("apt-get"); err != nil || os.Geteuid() != 0 {
		return errors.New("installing it here takes root and apt-get")
	}
	lock, err := os.OpenFile(filepath.Join(os.TempDir(), "outbox-install.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		fmt.Fprintf(os.Stderr, "Waiting for another installation to end, to install %s: it holds %s.\n", pkg, lock.Name())
		if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
			return fmt.Errorf("lock %s: %w", lock.Name(), err)
		}
	}
	if installed() {
		return nil
	}
	allow, err := startNothing()
	if err != nil {
		return err
	}
	defer allow()
	for _, args := range [][]string{
		{"update", "-q"},
		{"install", "-q", "-y", "--no-install-recommends", pkg},
	} {
		cmd := exec.CommandContext(ctx, "apt-get", args...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "UCF_FORCE_CONFFOLD=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("apt-get %s: %w: %s", strings.Join(args, " "), err, out)
		}
	}
	return nil
}

// Need returns the path of the first of some programs, all of which one of Debian's packages has. It installs the package when one
// of them is not on the machine. It returns missing, with the reason, when it cannot.
func Need(ctx context.Context, missing error, pkg string, programs ...string) (path string, err error) {
	installed := func() bool {
		for _, name := range slices.Backward(programs) {
			if path, err = exec.LookPath(name); err != nil && filepath.Base(name) == name {
				path, err = exec.LookPath("/usr/sbin/" + name) // which is not in everyone's path
			}
			if err != nil {
				return false
			}
		}
		return true
	}
	if installed() {
		return path, nil
	}
	if err := Install(ctx, pkg, installed); err != nil {
		return "", fmt.Errorf("%w (%w)", missing, err)
	}
	installed() // where the package has put them
	return path, err
}

// startNothing keeps Debian's packages from starting what they install, until it is allowed again.
func startNothing() (allow func(), err error) {
	const path = "/usr/sbin/policy-rc.d"
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if errors.Is(err, os.ErrExist) {
		return func() {}, nil // the machine has a policy
	}
	if err != nil {
		return nil, err
	}
	_, err = file.WriteString("#!/bin/sh\nexit 101\n")
	return func() { _ = os.Remove(path) }, errors.Join(err, file.Close())
}
