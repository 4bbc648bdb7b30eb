package pods

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/lru"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/outbox-operator/outbox-operator/controllers/internal/problem"
)

// Bounds of what [Mounts] keeps. Whoever may create Events in a namespace fills the share of that namespace alone.
const (
	maxPodsOfNamespace = 256
	maxMountMessage    = 1 << 10
	eventsLast         = time.Hour // as long as the API server keeps Events
)

// watchAgain is the pause before a watch that ended is made again.
const watchAgain = time.Second

// Mounts keeps the kubelet's last Event [FailedMount] of each pod, a bounded number for a namespace. It watches the
// Events and keeps no other.
type Mounts struct {
	client     client.WithWatch
	namespaces []string

	mu         sync.Mutex
	failed     map[string]*failedMounts // by namespace
	lastPruned time.Time
}

type failedMounts struct {
	byPod *lru.Cache // corev1.Event by types.UID
	at    time.Time
}

// NewMounts watches with c the Events of the namespaces; none means all.
func NewMounts(c client.WithWatch, namespaces ...string) *Mounts {
	if len(namespaces) == 0 {
		namespaces = []string{corev1.NamespaceAll}
	}
	return &Mounts{client: c, namespaces: namespaces, failed: map[string]*failedMounts{}}
}

// Start watches until ctx ends, and returns at once. It calls notify for each Event, with the pod that it is about.
func (m *Mounts) Start(ctx context.Context, notify func(pod types.NamespacedName)) {
	for _, namespace := range m.namespaces {
		go func() {
			for ctx.Err() == nil {
				if err := m.watch(ctx, namespace, notify); err != nil && ctx.Err() == nil {
					log.FromContext(ctx).Error(err, "Watch the Events about files of pods")
				}
				select {
				case <-ctx.Done():
				case <-time.After(watchAgain):
				}
			}
		}()
	}
}

// watch returns when the API server ends the watch, which begins with the Events that exist.
func (m *Mounts) watch(ctx context.Context, namespace string, notify func(types.NamespacedName)) error {
	w, err := m.client.Watch(ctx, &corev1.EventList{}, client.InNamespace(namespace),
		client.MatchingFields{"involvedObject.kind": "Pod", "reason": FailedMount})
	if err != nil {
		return err
	}
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case change, ok := <-w.ResultChan():
			if !ok {
				return nil
			}
			if e, ok := change.Object.(*corev1.Event); ok {
				m.keep(e, change.Type != watch.Deleted, time.Now())
				notify(types.NamespacedName{Namespace: e.Namespace, Name: e.InvolvedObject.Name})
			}
		}
	}
}

// keep keeps what is read of an Event that exists, and forgets one that does not.
func (m *Mounts) keep(e *corev1.Event, exists bool, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if now.Sub(m.lastPruned) > eventsLast {
		m.lastPruned = now
		for namespace, of := range m.failed {
			if now.Sub(of.at) > eventsLast {
				delete(m.failed, namespace)
			}
		}
	}
	of := m.failed[e.Namespace]
	if of == nil {
		of = &failedMounts{byPod: lru.New(maxPodsOfNamespace)}
		m.failed[e.Namespace] = of
	}
	of.at = now
	uid := types.UID(problem.Clip(string(e.InvolvedObject.UID), 64))
	if before, ok := of.byPod.Get(uid); ok && e.LastTimestamp.Before(&before.(*corev1.Event).LastTimestamp) {
		return
	}
	if !exists {
		of.byPod.Remove(uid)
		return
	}
	of.byPod.Add(uid, &corev1.Event{Message: problem.Clip(e.Message, maxMountMessage), LastTimestamp: e.LastTimestamp, Count: e.Count})
}

// FailedMount implements [FailedMounts].
func (m *Mounts) FailedMount(pod *corev1.Pod) corev1.Event {
	m.mu.Lock()
	defer m.mu.Unlock()
	if of := m.failed[pod.Namespace]; of != nil {
		if e, ok := of.byPod.Get(pod.UID); ok {
			return *e.(*corev1.Event)
		}
	}
	return corev1.Event{}
}
