// Package pins has the versions of programs; its test is that of kube/build.sh.
package pins

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"crypto/sha512"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// archive is a release with programs that print their names.
func archive(t *testing.T, programs ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	zipped := gzip.NewWriter(&b)
	files := tar.NewWriter(zipped)
	for _, p := range programs {
		script := "#!/bin/sh\necho downloaded " + p + "\n"
		need.OK(t, files.WriteHeader(&tar.Header{Name: "release/bin/" + p, Mode: 0o755, Size: int64(len(script))}))
		fmt.Fprint(files, script)
	}
	need.OK(t, files.Close())
	need.OK(t, zipped.Close())
	return b.Bytes()
}

// provide runs build.sh with a go that builds programs which print that they are built, and returns the directory.
func provide(t *testing.T, what, downloads string, env ...string) (dir, stderr string) {
	t.Helper()
	scratch := t.TempDir()
	goes := `#!/bin/bash
while [ "$1" != -o ]; do shift; done
out=$2; shift 2
for package; do
  file=$out; [[ $out != */ ]] || file=$out${package##*/}
  printf '#!/bin/sh\necho built %s\n' "${package##*/}" >"$file"; chmod +x "$file"
done
`
	need.OK(t, os.WriteFile(filepath.Join(scratch, "go"), []byte(goes), 0o755))
	list := filepath.Join(scratch, "downloads.txt")
	need.OK(t, os.WriteFile(list, []byte(downloads), 0o600))
	cmd := exec.CommandContext(t.Context(), "kube/build.sh", what)
	cmd.Env = append(os.Environ(), "PATH="+scratch+":"+os.Getenv("PATH"), "OUTBOX_CACHE="+filepath.Join(scratch, "cache"),
		"OUTBOX_KUBE_DOWNLOADS="+list, "KUBEBUILDER_ASSETS=")
	cmd.Env = append(cmd.Env, env...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	need.Must(t, err == nil, "build.sh: %v: %s", err, errs.String())
	return strings.TrimSpace(string(out)), errs.String()
}

func TestKubernetesIsDownloadedOrElseBuilt(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("uname is compared with Linux here")
	}
	uname, err := exec.CommandContext(t.Context(), "uname", "-m").Output()
	need.OK(t, err)
	system := "Linux-" + strings.TrimSpace(string(uname))
	test, node := archive(t, "etcd", "kube-apiserver", "kubectl"), archive(t, "kubelet", "kube-proxy")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write(map[string][]byte{"/test.tgz": test, "/node.tgz": node}[r.URL.Path])
	}))
	t.Cleanup(server.Close)
	good := fmt.Sprintf("# comment\n%s %x %s/test.tgz etcd kube-apiserver kubectl\n%[1]s %[4]x %[3]s/node.tgz kubelet kube-proxy\n",
		system, sha512.Sum512(test), server.URL, sha256.Sum256(node))
	assets := t.TempDir()
	for _, p := range []string{"etcd", "kube-apiserver", "kubectl"} {
		need.OK(t, os.WriteFile(filepath.Join(assets, p), []byte("#!/bin/sh\necho given\n"), 0o755))
	}
	for name, c := range map[string]struct {
		what, downloads, env string
		want                 map[string]string
		stderr               string
	}{
		"downloaded":          {"test", good, "", map[string]string{"etcd": "downloaded etcd", "kubectl": "downloaded kubectl"}, "Downloaded etcd"},
		"partly downloaded":   {"node", good, "", map[string]string{"etcd": "downloaded etcd", "kubelet": "downloaded kubelet", "kube-scheduler": "built kube-scheduler"}, "Building"},
		"wrong checksum":      {"test", strings.Replace(good, fmt.Sprintf("%x", sha512.Sum512(test)), strings.Repeat("0", 128), 1), "", map[string]string{"etcd": "built v3", "kubectl": "built kubectl"}, "has another checksum"},
		"another system":      {"test", strings.ReplaceAll(good, "Linux", "Plan9"), "", map[string]string{"etcd": "built v3"}, "takes 8 to 12 minutes"},
		"cannot be reached":   {"test", strings.ReplaceAll(good, server.URL, "http://127.0.0.1:1"), "", map[string]string{"etcd": "built v3"}, "takes 8 to 12 minutes"},
		"given":               {"test", good, "KUBEBUILDER_ASSETS=" + assets, map[string]string{"etcd": "given"}, ""},
		"given without nodes": {"node", good, "KUBEBUILDER_ASSETS=" + assets, map[string]string{"etcd": "downloaded etcd"}, "Downloaded"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, stderr := provide(t, c.what, c.downloads, c.env)
			for program, want := range c.want {
				out, err := exec.CommandContext(t.Context(), filepath.Join(dir, program)).CombinedOutput()
				got := strings.TrimSpace(string(out))
				need.That(t, err == nil && got == want, "%s printed %q, %v; want %q", program, got, err, want)
			}
			need.That(t, strings.Contains(stderr, c.stderr) && (c.stderr != "" || stderr == ""), "it reported %q, want %q", stderr, c.stderr)
		})
	}
}
