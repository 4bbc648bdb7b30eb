// Package languages runs programs in Python, TypeScript and Java, with packages of their registries in the user's cache: the
// workers, readers, consumers and servers in other languages that tests need.
package languages

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/outbox-operator/outbox-operator/hack/internal/daemon"
	"github.com/outbox-operator/outbox-operator/hack/internal/fetch"
)

// ErrMissing is returned when this machine does not have the language, or cannot get a package.
var ErrMissing = errors.New("no such language with the packages on this machine; install python3 and python3-venv, nodejs and npm, or default-jdk-headless, and see that its registry (PyPI, npm, Maven Central) can be reached")

// Python is python3 with the arguments, in an environment with the packages, each as pip names one with its version:
// "psycopg[binary]==3.2.10". It returns [ErrMissing] when it cannot be installed.
func Python(ctx context.Context, packages []string, args ...string) (*exec.Cmd, error) {
	bin, err := PythonEnvironment(ctx, "python", []byte(strings.Join(packages, "\n")+"\n"))
	if err != nil {
		return nil, fmt.Errorf("%w (%w)", ErrMissing, err)
	}
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "python3"), args...)
	cmd.Env = append(os.Environ(), "PYTHONUNBUFFERED=1")
	return cmd, nil
}

// PythonEnvironment returns the directory of the programs of the environment with a name. It is made once for each
// content of requirements, which are a requirements.txt; processes that want it at the same time wait for one of them.
// It returns [ErrMissing] when it cannot be installed.
func PythonEnvironment(ctx context.Context, name string, requirements []byte) (bin string, err error) {
	dir, err := fetch.Once(name, requirements, func(dir string) error {
		if err := needVenv(ctx); err != nil {
			return err
		}
		if err := command(ctx, "python3", "-m", "venv", "--clear", dir); err != nil {
			return err
		}
		list := filepath.Join(dir, "requirements.txt")
		if err := os.WriteFile(list, requirements, 0o644); err != nil {
			return fmt.Errorf("write the requirements: %w", err)
		}
		return command(ctx, filepath.Join(dir, "bin", "pip"), "install", "--quiet", "--disable-pip-version-check", "--requirement", list)
	})
	return filepath.Join(dir, "bin"), err
}

// needVenv gets Python's venv, which Debian has in a package of its own.
func needVenv(ctx context.Context) error {
	installed := func() bool { return exec.CommandContext(ctx, "python3", "-c", "import ensurepip").Run() == nil }
	if installed() {
		return nil
	}
	return daemon.Install(ctx, "python3-venv", installed)
}

func command(ctx context.Context, name string, args ...string) error {
	if out, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, out)
	}
	return nil
}

// compiler is added to the packages of every program.
var compiler = []string{"typescript@5.9.3", "@types/node@20.19.0"}

// TypeScript compiles a program, strictly, and returns the command that runs it. Packages are as npm names one with its
// version: "pg@8.16.3". It returns [ErrMissing] when they cannot be installed, and what the compiler says of the program.
func TypeScript(ctx context.Context, packages []string, program string) (*exec.Cmd, error) {
	dir, err := environment(ctx, append(compiler, packages...))
	if err != nil {
		return nil, fmt.Errorf("%w (%w)", ErrMissing, err)
	}
	out, err := os.MkdirTemp(dir, "program-")
	if err != nil {
		return nil, fmt.Errorf("make the program's directory: %w", err)
	}
	context.AfterFunc(ctx, func() { _ = os.RemoveAll(out) })
	source := filepath.Join(out, "program.mts")
	if err := os.WriteFile(source, []byte(program), 0o600); err != nil {
		return nil, fmt.Errorf("write the program: %w", err)
	}
	tsc := exec.CommandContext(ctx, filepath.Join(dir, "node_modules", ".bin", "tsc"),
		"--strict", "--skipLibCheck", "--target", "es2022", "--module", "nodenext", "--types", "node", "--typeRoots", filepath.Join(dir, "node_modules", "@types"), source)
	if said, err := tsc.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("compile the program: %w: %s", err, said)
	}
	cmd := exec.CommandContext(ctx, "node", filepath.Join(out, "program.mjs"))
	cmd.Env = os.Environ()
	return cmd, nil
}

// environment is a directory with the packages, made once for each list of them.
func environment(ctx context.Context, packages []string) (string, error) {
	return fetch.Once("node", []byte(strings.Join(packages, "\n")), func(dir string) error {
		if _, err := daemon.Need(ctx, ErrMissing, "npm", "npm"); err != nil {
			return err
		}
		install := []string{"install", "--prefix", dir, "--silent", "--no-audit", "--no-fund", "--ignore-scripts"}
		return command(ctx, "npm", append(install, packages...)...)
	})
}

// PostgresJars are the jars of [Java] for programs that read PostgreSQL: its driver, Spring's JdbcTemplate and its support of JPA,
// and Hibernate, with what they need.
//
//go:embed jars.sha256
var PostgresJars string

// Java is the command that runs a program of one file of source, whose class has a name, with jars by their checksums. The
// file is in dir. It returns [ErrMissing] when it cannot be run here.
func Java(ctx context.Context, jars, dir, class, program string, args ...string) (*exec.Cmd, error) {
	paths, err := fetch.Java(ctx, jars)
	if err != nil {
		return nil, fmt.Errorf("%w (%w)", ErrMissing, err)
	}
	// Java runs a file of source with the compiler of the JDK; Debian's runtime alone does not have it.
	if _, err := daemon.Need(ctx, ErrMissing, "default-jdk-headless", "javac"); err != nil {
		return nil, err
	}
	source := filepath.Join(dir, class+".java")
	if err := os.WriteFile(source, []byte(program), 0o600); err != nil {
		return nil, fmt.Errorf("write the program: %w", err)
	}
	args = append([]string{"-XX:TieredStopAtLevel=1", "-cp", strings.Join(paths, string(os.PathListSeparator)), source}, args...)
	cmd := exec.CommandContext(ctx, "java", args...)
	cmd.Env = os.Environ()
	return cmd, nil
}
