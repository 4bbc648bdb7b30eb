package v1alpha1_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/hack/envtest"
)

func TestMain(m *testing.M) { envtest.Main(m) }

// CONTRACT: C-100
func TestSamplesAreAccepted(t *testing.T) {
	c := newClient(t)
	for _, file := range files(t, "samples") {
		t.Run(filepath.Base(file), func(t *testing.T) {
			for _, obj := range objects(t, file) {
				if err := c.Create(t.Context(), obj, client.DryRunAll); err != nil {
					t.Errorf("refused: %v", err)
				}
			}
		})
	}
}

// Every file starts with what the API server answers, word for word: "# expect: " and a complaint,
// once for each.
//
// CONTRACT: C-28, C-101
func TestInvalidSamplesAreRefused(t *testing.T) {
	c := newClient(t)
	for _, file := range files(t, "invalid-samples") {
		t.Run(filepath.Base(file), func(t *testing.T) {
			got := complaints(c.Create(t.Context(), objects(t, file)[0], client.DryRunAll))
			if want := expectations(t, file); !slices.Equal(got, want) {
				t.Errorf("refused with\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
			}
		})
	}
}

// complaints are what the API server says about each field, sorted.
func complaints(err error) []string {
	var status *apierrors.StatusError
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &status) || status.ErrStatus.Details == nil || len(status.ErrStatus.Details.Causes) == 0:
		return []string{err.Error()}
	}
	var said []string
	for _, cause := range status.ErrStatus.Details.Causes {
		// After some errors the API server adds that it has not looked at everything yet.
		if !strings.Contains(cause.Message, "some validation rules were not checked") {
			said = append(said, strings.TrimPrefix(cause.Field+": "+cause.Message, "<nil>: "))
		}
	}
	slices.Sort(said)
	return said
}

// expectations are the sentences of the file's "# expect: " lines, sorted.
func expectations(t *testing.T, file string) []string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var expected []string
	for line := range strings.Lines(string(data)) {
		if sentence, ok := strings.CutPrefix(strings.TrimSpace(line), "# expect: "); ok {
			expected = append(expected, sentence)
		}
	}
	if len(expected) == 0 {
		t.Fatalf("%s has no line \"# expect: \" that says what the API server answers", file)
	}
	slices.Sort(expected)
	return expected
}

// newClient refuses unknown fields, as kubectl does.
func newClient(t *testing.T) client.Client {
	t.Helper()
	c, err := client.New(envtest.Start(t), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return client.WithFieldValidation(c, metav1.FieldValidationStrict)
}

func files(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", "..", "config", dir, "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no files in config/%s: %v", dir, err)
	}
	return files
}

// objects are the file's objects, in the namespace default.
func objects(t *testing.T, file string) []*unstructured.Unstructured {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var objs []*unstructured.Unstructured
	for decoder := yaml.NewYAMLOrJSONDecoder(f, 4096); ; {
		obj := &unstructured.Unstructured{}
		switch err := decoder.Decode(obj); {
		case errors.Is(err, io.EOF):
			return objs
		case err != nil:
			t.Fatalf("%s: %v", file, err)
		case len(obj.Object) != 0:
			obj.SetNamespace("default")
			objs = append(objs, obj)
		}
	}
}
