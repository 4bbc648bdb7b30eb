// Package registry runs a schema registry for tests: Apicurio Registry, from its project's
// own artifacts, which speaks the API of Confluent's Schema Registry. It listens on 127.0.0.1 only and
// keeps its schemas in memory.
package registry

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"github.com/outbox-operator/outbox-operator/hack/internal/daemon"
	"github.com/outbox-operator/outbox-operator/hack/internal/fetch"
)

// sums is the registry with all that it needs at run time, as its project packs it.
//
//go:embed files.sha256
var sums string

// Registry is a running registry. On Linux it ends with this process at the latest.
type Registry struct {
	daemon.Server
	url string
}

// ErrMissing is returned by [Start] when this machine has no Java or no registry, and cannot get them.
var ErrMissing = fetch.ErrMissing

// Start makes a new registry and waits until it is ready. What it runs is fetched when it is not on the
// machine: a Java runtime from the distribution's package, the registry from Maven Central.
// It returns an error when it is not ready before ctx ends, or cannot be installed.
func Start(ctx context.Context) (*Registry, error) {
	files, err := fetch.Java(ctx, sums)
	if err != nil {
		return nil, err
	}
	server, err := daemon.NewServer("outbox-registry-*")
	if err != nil {
		return nil, err
	}
	port, err := daemon.FreePort()
	if err != nil {
		return nil, err
	}
	r := &Registry{Server: server, url: fmt.Sprintf("http://127.0.0.1:%d/apis/ccompat/v7", port)}
	return r, r.Launch(ctx, func() error { return r.unpack(ctx, files[0]) }, daemon.Program{
		Name: "the registry", Abrupt: true, Ready: r.ready, // it keeps nothing
		Command: func() *exec.Cmd {
			jars, _ := filepath.Glob(r.Path("data/*-runner.jar")) // the pattern is well-formed
			cmd := exec.Command("java", append([]string{"-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-jar"}, jars...)...)
			cmd.Dir = r.Path("data")
			cmd.Env = append(os.Environ(), "QUARKUS_HTTP_HOST=127.0.0.1", "QUARKUS_HTTP_PORT="+strconv.Itoa(port))
			return cmd
		},
	})
}

// URL is the root of Confluent's API, over http and without credentials.
func (r *Registry) URL() string { return r.url }

func (r *Registry) unpack(ctx context.Context, archive string) error {
	data := r.Path("data")
	if err := os.Mkdir(data, 0o700); err != nil {
		return fmt.Errorf("make the registry's directory: %w", err)
	}
	if out, err := exec.CommandContext(ctx, "tar", "-xzf", archive, "-C", data).CombinedOutput(); err != nil {
		return fmt.Errorf("unpack the registry: %w: %s", err, out)
	}
	return nil
}

func (r *Registry) ready(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url+"/subjects", nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	return nil
}
