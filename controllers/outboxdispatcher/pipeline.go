package outboxdispatcher

import (
	"context"
	"fmt"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/dispatcher/pipeline"
)

// schemaReader reads the ConfigMaps that specs name, and compiles what routes, validation and transform
// say, so that a mistake is told and never reaches a pod. It does both again only when the spec or a
// ConfigMap has changed.
type schemaReader struct {
	metadata client.Reader
	live     client.Reader

	mu    sync.Mutex
	known map[types.NamespacedName]knownSchemas
}

// knownSchemas are what came of a spec and its ConfigMaps in those versions.
type knownSchemas struct {
	versions string
	texts    map[desired.SchemaRef]string
	err      error
}

func newSchemaReader(metadata, live client.Reader) *schemaReader {
	return &schemaReader{metadata: metadata, live: live, known: map[types.NamespacedName]knownSchemas{}}
}

// resolve returns obd with its schemas. A ConfigMap or key that is missing is a problem with
// SecretsResolved; what cannot be compiled is one with WorkloadAvailable.
func (r *schemaReader) resolve(ctx context.Context, obd *v1alpha1.OutboxDispatcher) (*v1alpha1.OutboxDispatcher, error) {
	refs := desired.SchemaRefs(obd)
	versions := map[string]string{}
	for _, ref := range refs {
		meta := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}}
		if err := r.metadata.Get(ctx, types.NamespacedName{Namespace: obd.Namespace, Name: ref.ConfigMap}, meta); err != nil {
			return nil, configMapProblem(err, obd.Namespace, ref)
		}
		versions[ref.ConfigMap] = string(meta.UID) + "/" + meta.ResourceVersion
	}
	key, now := client.ObjectKeyFromObject(obd), desired.Hash(versions, obd.Spec.Routes, obd.Spec.Validation, obd.Spec.Transform, desired.SinkKind(obd.Spec.Sink))
	r.mu.Lock()
	known, ok := r.known[key]
	r.mu.Unlock()
	if !ok || known.versions != now {
		texts, err := r.read(ctx, obd.Namespace, refs)
		if err != nil {
			return nil, err
		}
		known = knownSchemas{now, texts, compiles(obd, texts)}
		r.mu.Lock()
		r.known[key] = known
		r.mu.Unlock()
	}
	if known.err != nil {
		return nil, known.err
	}
	return desired.WithSchemas(obd, known.texts), nil
}

func (r *schemaReader) read(ctx context.Context, namespace string, refs []desired.SchemaRef) (map[desired.SchemaRef]string, error) {
	configMaps, texts := map[string]*corev1.ConfigMap{}, map[desired.SchemaRef]string{}
	for _, ref := range refs {
		if configMaps[ref.ConfigMap] == nil {
			configMap := &corev1.ConfigMap{}
			if err := r.live.Get(ctx, types.NamespacedName{Namespace: namespace, Name: ref.ConfigMap}, configMap); err != nil {
				return nil, configMapProblem(err, namespace, ref)
			}
			configMaps[ref.ConfigMap] = configMap
		}
		text, ok := configMaps[ref.ConfigMap].Data[ref.Key]
		if !ok {
			return nil, &problem{condition: v1alpha1.SecretsResolvedCondition, reason: v1alpha1.ReasonConfigMapKeyNotFound,
				message: fmt.Sprintf("ConfigMap %q, which %s names, has no key %q; add the key, or name the right one.", ref.ConfigMap, schemaField(ref), ref.Key)}
		}
		texts[ref] = text
	}
	return texts, nil
}

// schemaField is where the spec names the ConfigMap.
func schemaField(ref desired.SchemaRef) string {
	return fmt.Sprintf("spec.validation[%d].schema.configMap", ref.Entry)
}

func configMapProblem(err error, namespace string, ref desired.SchemaRef) error {
	if !apierrors.IsNotFound(err) {
		return fmt.Errorf("read ConfigMap %s: %w", ref.ConfigMap, err)
	}
	return &problem{condition: v1alpha1.SecretsResolvedCondition, reason: v1alpha1.ReasonConfigMapNotFound,
		message: fmt.Sprintf("ConfigMap %q, which %s names, does not exist in namespace %q; create it, and this goes on by itself.", ref.ConfigMap, schemaField(ref), namespace)}
}

// compiles is the problem with what routes, validation and transform say, or nil.
func compiles(obd *v1alpha1.OutboxDispatcher, texts map[desired.SchemaRef]string) error {
	cfg := desired.Config(desired.WithSchemas(obd, texts))
	_, err := pipeline.New(cfg, pipeline.Options{})
	if err == nil {
		return nil
	}
	lines := strings.Split(err.Error(), "\n")
	for i := range lines {
		lines[i] = "spec." + lines[i]
		for ref := range texts {
			field := schemaField(ref)
			lines[i] = strings.Replace(lines[i], strings.TrimSuffix(field, "configMap")+"inline", field, 1)
		}
	}
	return &problem{v1alpha1.WorkloadAvailableCondition, v1alpha1.ReasonInvalidPipeline, strings.Join(lines, "; ") + ". The pods that run are left as they are.", true}
}

func (r *schemaReader) forget(obd types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.known, obd)
}
