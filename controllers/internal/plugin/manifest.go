package plugin

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/resource"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

// manifest is what a file has for a try.
type manifest struct {
	dispatcher *unstructured.Unstructured
	// schemas are the file's ConfigMaps that the dispatcher may name, by name.
	schemas map[string]*corev1.ConfigMap
}

// readManifest reads the one OutboxDispatcher of a file, or that of the name, and the ConfigMaps next to it. - is in.
func readManifest(in io.Reader, file, name string) (*manifest, error) {
	b := resource.NewLocalBuilder().Unstructured().ContinueOnError().Flatten()
	if file == "-" {
		b.Stream(in, "standard input")
	} else {
		b.FilenameParam(false, &resource.FilenameOptions{Filenames: []string{file}})
	}
	infos, err := b.Do().Infos()
	if err != nil {
		return nil, fmt.Errorf("read the manifest: %w; name a file of Kubernetes objects with -f", err)
	}
	var found []*unstructured.Unstructured
	var names []string
	var maps []*unstructured.Unstructured
	for _, info := range infos {
		u := info.Object.(*unstructured.Unstructured) // of an unstructured builder
		switch u.GroupVersionKind().GroupKind() {
		case schema.GroupKind{Group: v1alpha1.GroupVersion.Group, Kind: "OutboxDispatcher"}:
			names = append(names, u.GetName())
			if name == "" || u.GetName() == name {
				found = append(found, u)
			}
		case schema.GroupKind{Kind: "ConfigMap"}:
			maps = append(maps, u)
		}
	}
	switch {
	case len(names) == 0:
		return nil, errors.New("the manifest has no OutboxDispatcher of outbox.dev; name the file that has it with -f")
	case len(found) != 1:
		slices.Sort(names)
		return nil, fmt.Errorf("the manifest has the OutboxDispatchers %s; name one of them that is there once", strings.Join(names, ", "))
	}
	return withSchemas(found[0], maps)
}

// withSchemas keeps the ConfigMaps of the dispatcher's namespace that its schemas name.
func withSchemas(dispatcher *unstructured.Unstructured, maps []*unstructured.Unstructured) (*manifest, error) {
	m := &manifest{dispatcher: dispatcher, schemas: map[string]*corev1.ConfigMap{}}
	for _, u := range maps {
		if u.GetNamespace() != dispatcher.GetNamespace() {
			continue
		}
		var made corev1.ConfigMap
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &made); err != nil {
			return nil, fmt.Errorf("read the ConfigMap %s of the manifest: %w; correct it", u.GetName(), err)
		}
		m.schemas[made.Name] = &made
	}
	return m, nil
}

// setNamespace gives the manifest its namespace, and works there. flag is --namespace.
func (t *target) setNamespace(m *manifest, flag string) error {
	switch own := m.dispatcher.GetNamespace(); {
	case own == "":
		m.dispatcher.SetNamespace(t.namespace)
	case flag != "" && flag != own:
		return fmt.Errorf("the manifest is for the namespace %s, and --namespace is %s; remove one of them", own, flag)
	default:
		t.namespace = own
	}
	return nil
}

// typed is the OutboxDispatcher that the API server returned.
func typed(u *unstructured.Unstructured) (*v1alpha1.OutboxDispatcher, error) {
	var obd v1alpha1.OutboxDispatcher
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &obd); err != nil {
		return nil, fmt.Errorf("read the OutboxDispatcher that the API server returned: %w; use a plugin of the operator's version", err)
	}
	return &obd, nil
}
