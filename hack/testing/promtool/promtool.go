// Package promtool checks and plays alert rules with Prometheus' own programs, from the distribution's package.
package promtool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/outbox-operator/outbox-operator/hack/internal/daemon"
)

// ErrMissing is returned by [Run] and [Start] when this machine has no Prometheus and cannot get one.
var ErrMissing = errors.New("no promtool on this machine; install the package prometheus")

// Run runs promtool in a directory. When the machine has none, it is installed from the distribution's
// packages, if this process may do that. The error holds what promtool said.
func Run(ctx context.Context, dir string, args ...string) error {
	binary, err := daemon.Need(ctx, ErrMissing, "prometheus", "promtool")
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("promtool: %w:\n%s", err, out)
	}
	return nil
}

// Server is a Prometheus that evaluates the project's rules over what it scrapes.
type Server struct {
	// Address is where it responds, such as 127.0.0.1:9090.
	Address string

	dir     string
	process *daemon.Process
}

// Rules returns the file of rules as Prometheus reads it, from a checkout's config/prometheus/rules.yaml. It fails when that cannot
// be read.
func Rules(checkout string) ([]byte, error) {
	var object struct{ Spec any }
	text, err := os.ReadFile(filepath.Join(checkout, "config/prometheus/rules.yaml"))
	if err == nil {
		err = yaml.Unmarshal(text, &object)
	}
	if err != nil {
		return nil, fmt.Errorf("read the rules: %w", err)
	}
	return yaml.Marshal(object.Spec)
}

// Start starts a Prometheus in an empty directory, by the rules of a checkout. It scrapes and evaluates as often as every says; 0 is
// every 30 seconds, and the rules as they say. It ends with [Server.Stop], or with this process. It returns [ErrMissing] as [Run]
// does, and an error when Prometheus does not respond before ctx ends.
func Start(ctx context.Context, dir, checkout string, every time.Duration) (*Server, error) {
	binary, err := daemon.Need(ctx, ErrMissing, "prometheus", "prometheus")
	if err != nil {
		return nil, err
	}
	rules, err := Rules(checkout)
	if err != nil {
		return nil, err
	}
	text := string(rules)
	if every != 0 {
		text = strings.NewReplacer("interval: 30s\n", "interval: "+every.String()+"\n", "interval: 1m\n", "interval: "+every.String()+"\n").Replace(text)
	} else {
		every = 30 * time.Second
	}
	port, err := daemon.FreePort()
	if err != nil {
		return nil, err
	}
	s := &Server{Address: fmt.Sprintf("127.0.0.1:%d", port), dir: dir}
	config := fmt.Sprintf(`{"global": {"scrape_interval": %[1]q, "scrape_timeout": %[1]q, "evaluation_interval": %[1]q}, "rule_files": ["rules.yaml"], "scrape_configs": [
		{"job_name": "outbox", "honor_labels": true, "tls_config": {"insecure_skip_verify": true}, "authorization": {"credentials_file": "token"}, "file_sd_configs": [{"files": ["targets/*.json"]}]}]}`, every)
	err = os.MkdirAll(filepath.Join(dir, "targets"), 0o755)
	for name, text := range map[string]string{"rules.yaml": text, "prometheus.yml": config, "token": "none"} {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(binary, "--config.file=prometheus.yml", "--storage.tsdb.path=data", "--web.listen-address="+s.Address, "--enable-feature=native-histograms")
	cmd.Dir = dir
	s.process, err = daemon.Serve(ctx, "prometheus", cmd, nil, syscall.SIGKILL, filepath.Join(dir, "log"), daemon.Listens(s.Address))
	return s, err
}

// Stop ends the Prometheus.
func (s *Server) Stop() { s.process.End(syscall.SIGTERM) }

// Scrape has it scrape an address, such as 127.0.0.1:8080 or https://10.0.0.1:8443, with a bearer token or none, and give the series
// labels. It takes the place of what was scraped under the name; an empty address ends that. It fails when its file cannot be written.
func (s *Server) Scrape(name, address, token string, labels map[string]string) error {
	targets, of := []any{}, map[string]string{}
	if address != "" {
		scheme, host, secure := strings.Cut(address, "://")
		if !secure {
			scheme, host = "http", address
		}
		for key, value := range labels {
			of[key] = value
		}
		of["__scheme__"] = scheme
		targets = append(targets, map[string]any{"targets": []string{host}, "labels": of})
	}
	text, err := json.Marshal(targets)
	if err == nil && token != "" {
		err = os.WriteFile(filepath.Join(s.dir, "token"), []byte(token), 0o600)
	}
	return errors.Join(err, os.WriteFile(filepath.Join(s.dir, "targets", name+".json"), text, 0o600))
}

// Range returns the values of a query between two times, one a second, by their labels, without what is not a number. It fails when
// Prometheus does.
func (s *Server) Range(ctx context.Context, expr string, from, to time.Time) (map[string][]float64, error) {
	query := url.Values{"query": {expr}, "step": {strconv.Itoa(1 + int(to.Sub(from).Hours()))}, "start": {strconv.FormatInt(from.Unix(), 10)}, "end": {strconv.FormatInt(to.Unix(), 10)}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.Address+"/api/v1/query_range?"+query.Encode(), nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	var body struct {
		Error string
		Data  struct {
			Result []struct {
				Metric map[string]string
				Values [][2]any
			}
		}
	}
	if err = json.NewDecoder(response.Body).Decode(&body); err == nil && body.Error != "" {
		err = errors.New(body.Error)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", expr, err)
	}
	all := map[string][]float64{}
	for _, s := range body.Data.Result {
		for _, v := range s.Values {
			if n, err := strconv.ParseFloat(v[1].(string), 64); err == nil && !math.IsNaN(n) {
				all[fmt.Sprint(s.Metric)] = append(all[fmt.Sprint(s.Metric)], n)
			}
		}
	}
	return all, nil
}
