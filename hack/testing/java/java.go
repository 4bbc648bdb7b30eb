// Package java runs programs in Java with jars of Maven Central: the consumers and producers that tests need.
package java

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

// ErrMissing is returned by [Command] when this machine has no JDK, or cannot get a jar.
var ErrMissing = errors.New("no java with the jars on this machine; install default-jdk-headless, and see that Maven Central can be reached")

// Postgres are the jars of [Command] for programs that read PostgreSQL: its driver, Spring's JdbcTemplate and its support of JPA,
// and Hibernate, with what they need.
//
//go:embed jars.sha256
var Postgres string

// Command is the command that runs a program of one file of source, whose class has a name, with jars by their checksums. The
// file is in dir. It returns [ErrMissing] when it cannot be run here.
func Command(ctx context.Context, jars, dir, class, program string, args ...string) (*exec.Cmd, error) {
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
