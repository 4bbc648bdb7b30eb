package v1alpha1_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/hack/testing/envtest"
)

// strict refuses unknown fields, as kubectl does.
var strict client.Client

var _ = BeforeSuite(func() {
	c, err := client.New(envtest.Start(GinkgoTB()), client.Options{})
	Expect(err).NotTo(HaveOccurred())
	strict = client.WithFieldValidation(c, metav1.FieldValidationStrict)
})

var _ = Describe("a sample", Label("samples"), func() {
	// CONTRACT: C-100
	for _, file := range files("..", "..", "config", "samples") {
		It(filepath.Base(file)+" is accepted", func(ctx SpecContext) {
			for _, obj := range objects(file) {
				Expect(strict.Create(ctx, obj, client.DryRunAll)).To(Succeed(), "%s %s", obj.GetKind(), obj.GetName())
			}
		})
	}
})

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

// files are the YAML files of the directory.
func files(dir ...string) []string {
	files, err := filepath.Glob(filepath.Join(append(dir, "*.yaml")...))
	if err != nil || len(files) == 0 {
		panic(fmt.Sprintf("no files in %s: %v", filepath.Join(dir...), err))
	}
	return files
}

// objects are the file's objects, in the namespace default.
func objects(file string) []*unstructured.Unstructured {
	GinkgoHelper()
	f, err := os.Open(file)
	Expect(err).NotTo(HaveOccurred())
	defer f.Close()
	var objs []*unstructured.Unstructured
	for decoder := yaml.NewYAMLOrJSONDecoder(f, 4096); ; {
		obj := &unstructured.Unstructured{}
		err := decoder.Decode(obj)
		if errors.Is(err, io.EOF) {
			return objs
		}
		Expect(err).NotTo(HaveOccurred(), file)
		if len(obj.Object) != 0 {
			obj.SetNamespace("default")
			objs = append(objs, obj)
		}
	}
}

func TestMain(m *testing.M) { envtest.Main(m) }

// Labels pick some of these specs: `go test ./api/v1alpha1 -ginkgo.label-filter=columns`.
func TestOnTheAPIServer(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "the kinds on an API server")
}
