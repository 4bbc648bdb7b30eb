package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
)

const (
	peersDir = "peers"
	// peersBefore pins what the packages of package.json depend on: npm takes the newest version of that time.
	peersBefore = "2026-11-21T13:00:00Z"
)

// prepareNode installs the peers in Node.js, with the Node.js that package.json names. Without npm
// they are left out.
func (b *bench) prepareNode(ctx context.Context) error {
	if _, err := exec.LookPath("npm"); err != nil {
		b.note("npm is not in PATH, so Graphile Worker and pg-boss are left out. Install Node.js to compare with them.")
		return nil
	}
	packages, err := os.ReadFile(filepath.Join(peersDir, "package.json"))
	if err != nil {
		return fmt.Errorf("%w; run the benchmark in its directory, hack/bench", err)
	}
	want := peersBefore + "\n" + string(packages)
	installed := filepath.Join(peersDir, "node_modules", ".installed") // what was installed by the last run
	if old, err := os.ReadFile(installed); err != nil || string(old) != want {
		b.say("npm install in %s", peersDir)
		cmd := exec.CommandContext(ctx, "npm", "install", "--before="+peersBefore, "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error")
		cmd.Dir = peersDir
		if out, err := cmd.CombinedOutput(); err != nil {
			b.note("npm install failed, so Graphile Worker and pg-boss are left out: %v: %s", err, out)
			return nil
		}
		if err := os.WriteFile(installed, []byte(want), 0o644); err != nil {
			return err
		}
	}
	arch := map[string]string{"amd64": "x64"}[runtime.GOARCH]
	if arch == "" {
		arch = runtime.GOARCH
	}
	pinned := filepath.Join(peersDir, "node_modules", "node-"+runtime.GOOS+"-"+arch, "bin", "node")
	if _, err := os.Stat(pinned); err == nil {
		b.node = pinned
	} else if b.node, err = exec.LookPath("node"); err != nil {
		b.note("There is no Node.js for this machine, so Graphile Worker and pg-boss are left out.")
	}
	return nil
}

func (b *bench) note(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	b.results.Notes = append(b.results.Notes, text)
	b.say("%s", text)
}

// versions notes which peers are measured.
func (b *bench) versions() error {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			if dep.Path == "github.com/riverqueue/river" {
				b.results.Peers["River"] = dep.Version
			}
		}
	}
	if b.node == "" {
		return nil
	}
	for name, pkg := range map[string]string{"Graphile Worker": "graphile-worker", "pg-boss": "pg-boss"} {
		data, err := os.ReadFile(filepath.Join(peersDir, "node_modules", pkg, "package.json"))
		if err != nil {
			return err
		}
		var p struct{ Version string }
		if err := json.Unmarshal(data, &p); err != nil {
			return err
		}
		b.results.Peers[name] = p.Version
	}
	out, err := exec.Command(b.node, "--version").Output()
	b.results.Peers["Node.js"] = strings.TrimSpace(string(out))
	return err
}

// endWithParent has the kernel kill a child when this program is killed.
func endWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
