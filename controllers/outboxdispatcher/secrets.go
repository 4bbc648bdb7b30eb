package outboxdispatcher

import (
	"context"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
)

// digests are short hashes of what the Secrets hold under the keys that are used, for the
// dispatchers and for the migration.
type digests struct{ dispatcher, migration string }

// secretReader reads the Secrets that specs name. It keeps digests, never data, and reads again
// only what has a new version in the metadata cache.
type secretReader struct {
	metadata client.Reader
	live     client.Reader

	mu    sync.Mutex
	known map[types.NamespacedName]knownSecrets
}

// knownSecrets are the digests of the Secrets in those versions.
type knownSecrets struct {
	versions string
	digests  digests
}

func newSecretReader(metadata, live client.Reader) *secretReader {
	return &secretReader{metadata: metadata, live: live, known: map[types.NamespacedName]knownSecrets{}}
}

// resolve returns the digests of all that the spec names. A Secret or key that is missing is a
// problem with SecretsResolved.
func (r *secretReader) resolve(ctx context.Context, obd *v1alpha1.OutboxDispatcher) (digests, error) {
	dispatcher, migration := desired.DispatcherRefs(obd), desired.MigrationRefs(obd)
	refs := slices.Concat(dispatcher, migration)
	versions, err := r.versions(ctx, obd.Namespace, refs)
	if err != nil {
		return digests{}, err
	}
	key := client.ObjectKeyFromObject(obd)
	r.mu.Lock()
	known, ok := r.known[key]
	r.mu.Unlock()
	if ok && known.versions == versions {
		return known.digests, nil
	}
	data, err := r.read(ctx, obd.Namespace, refs)
	if err != nil {
		return digests{}, err
	}
	found := digests{digest(dispatcher, data), digest(migration, data)}
	r.mu.Lock()
	r.known[key] = knownSecrets{versions, found}
	r.mu.Unlock()
	return found, nil
}

// versions identifies what is asked for and the versions of the Secrets that hold it.
func (r *secretReader) versions(ctx context.Context, namespace string, refs []desired.Ref) (string, error) {
	versions := map[string]string{}
	for _, ref := range refs {
		secret := &metav1.PartialObjectMetadata{}
		secret.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
		if err := r.metadata.Get(ctx, types.NamespacedName{Namespace: namespace, Name: ref.Secret}, secret); err != nil {
			return "", secretProblem(err, namespace, ref)
		}
		versions[ref.Secret] = string(secret.UID) + "/" + secret.ResourceVersion
	}
	return desired.Hash(refs, versions), nil
}

// read returns the refs' values, by the path that pods read them at.
func (r *secretReader) read(ctx context.Context, namespace string, refs []desired.Ref) (map[string][]byte, error) {
	secrets, values := map[string]*corev1.Secret{}, map[string][]byte{}
	for _, ref := range refs {
		if secrets[ref.Secret] == nil {
			secret := &corev1.Secret{}
			if err := r.live.Get(ctx, types.NamespacedName{Namespace: namespace, Name: ref.Secret}, secret); err != nil {
				return nil, secretProblem(err, namespace, ref)
			}
			secrets[ref.Secret] = secret
		}
		value, ok := secrets[ref.Secret].Data[ref.Key]
		if !ok {
			return nil, &problem{condition: v1alpha1.SecretsResolvedCondition, reason: v1alpha1.ReasonSecretKeyNotFound,
				message: fmt.Sprintf("Secret %q, which %s names, has no key %q; add the key, or name the right one.", ref.Secret, ref.Field, ref.Key)}
		}
		values[ref.Path] = value
	}
	return values, nil
}

func secretProblem(err error, namespace string, ref desired.Ref) error {
	if !apierrors.IsNotFound(err) {
		return fmt.Errorf("read Secret %s: %w", ref.Secret, err)
	}
	return &problem{condition: v1alpha1.SecretsResolvedCondition, reason: v1alpha1.ReasonSecretNotFound,
		message: fmt.Sprintf("Secret %q, which %s names, does not exist in namespace %q; create it, and this goes on by itself.", ref.Secret, ref.Field, namespace)}
}

func digest(refs []desired.Ref, values map[string][]byte) string {
	used := map[string][]byte{}
	for _, ref := range refs {
		used[ref.Path] = values[ref.Path]
	}
	return desired.Hash(used)
}

func (r *secretReader) forget(obd types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.known, obd)
}
