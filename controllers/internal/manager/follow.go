package manager

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// followed has the events of a watch as the cache is to hear them.
type followed struct {
	watch.Interface
	events chan watch.Event
	ctx    context.Context
	cancel context.CancelFunc
}

// ResultChan implements watch.Interface, as Stop does.
func (f *followed) ResultChan() <-chan watch.Event { return f.events }

// Stop ends it also when nothing reads the next event.
func (f *followed) Stop() { f.cancel(); f.Interface.Stop() }

// send reports whether it is not stopped.
func (f *followed) send(e watch.Event) bool {
	select {
	case f.events <- e:
		return true
	case <-f.ctx.Done():
		return false
	}
}

// follow passes on what [kind.event] makes of the events of a watch. Right after a list it adds one with the list's version.
func (k *kind) follow(w watch.Interface, o metav1.ListOptions) watch.Interface {
	ctx, cancel := context.WithCancel(context.Background())
	f := &followed{w, make(chan watch.Event), ctx, cancel}
	hear := func(version string) bool {
		e, ok := k.listed(version)
		return !ok || f.send(e)
	}
	go func() {
		defer close(f.events)
		if !ptr.Deref(o.SendInitialEvents, false) && !hear(o.ResourceVersion) {
			return
		}
		for e := range w.ResultChan() {
			e = k.event(e)
			if !f.send(e) || e.Type == watch.Bookmark && !hear(e.Object.(client.Object).GetResourceVersion()) {
				return
			}
		}
	}()
	return f
}
