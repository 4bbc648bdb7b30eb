package readers

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

// ErrNoJava is returned when this machine has no reader in Java and cannot get it.
var ErrNoJava = errors.New("no CloudEvents SDK for Java on this machine; install default-jdk-headless, and see that Maven Central can be reached")

var (
	// The runtime dependencies of io.cloudevents:cloudevents-kafka and cloudevents-json-jackson, of
	// org.apache.kafka:kafka-clients and of org.slf4j:slf4j-nop.
	//
	//go:embed jars.sha256
	jars string
	//go:embed Reader.java
	java []byte
)

// StartJava starts the reader in Java with the arguments that Reader.java describes: the CloudEvents SDK for Java and
// Kafka's own client. It ends with ctx at the latest. It returns [ErrNoJava] when it cannot be installed.
func StartJava(ctx context.Context, args ...string) (*Reader, error) {
	paths, err := fetch.Java(ctx, jars)
	if err != nil {
		return nil, fmt.Errorf("%w (%w)", ErrNoJava, err)
	}
	// Java runs a file of source with the compiler of the JDK; Debian's runtime alone does not have it.
	installed := func() bool { _, err := exec.LookPath("javac"); return err == nil }
	if !installed() {
		if err := daemon.Install(ctx, "default-jdk-headless", installed); err != nil {
			return nil, fmt.Errorf("%w (%w)", ErrNoJava, err)
		}
	}
	source := filepath.Join(filepath.Dir(paths[0]), "Reader.java")
	if err := os.WriteFile(source, java, 0o644); err != nil {
		return nil, fmt.Errorf("write the reader: %w", err)
	}
	return start(exec.CommandContext(ctx, "java", append([]string{"-cp", strings.Join(paths, string(os.PathListSeparator)), source}, args...)...))
}
