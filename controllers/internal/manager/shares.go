package manager

import (
	"context"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/kstatus"
)

const (
	// objectBytes is what the cache takes in addition to an object, and ownBytes what one of the operator's own kinds
	// counts at least: the operator makes and remembers other things for it.
	objectBytes, ownBytes = 512, 8 << 10
	// reportedOf is how many of a kind in a namespace have in their status that they are left out.
	reportedOf = 100
)

var leftOut = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "outbox_objects_left_out",
	Help: "How many objects of a namespace the operator does not look at, because they are more than the namespace's share of its memory."}, []string{"namespace", "kind"})

func init() { metrics.Registry.MustRegister(leftOut) }

// shares bound what the objects of one namespace take of the cache, so that no tenant decides how much memory the manager
// takes. A third of each share is for the operator's own kinds. What has no room is left out: the cache hears that it
// was deleted, with its version, for which reads after a write wait.
type shares struct {
	most       int64 // bytes, of a namespace
	transforms map[reflect.Type]toolscache.TransformFunc
	reports    chan func(context.Context, *kstatus.Reporter) error

	mu    sync.Mutex
	kinds []*kind
	bytes map[pool]int64
}

// pool is the share of a namespace for the operator's own kinds, or for what has its label.
type pool struct {
	namespace string
	own       bool
}

// limit lets the cache keep of each namespace what its share has room for. It takes over the transforms: what is kept counts.
func limit(o cache.Options, share int64) (cache.Options, *shares) {
	s := &shares{most: share, transforms: map[reflect.Type]toolscache.TransformFunc{}, bytes: map[pool]int64{},
		reports: make(chan func(context.Context, *kstatus.Reporter) error, 4*reportedOf)}
	for object, options := range o.ByObject {
		s.transforms[reflect.TypeOf(object)] = options.Transform
		options.Transform = nil
		o.ByObject[object] = options
	}
	o.NewInformer = s.informer
	return o, s
}

// transform changes an object to what is kept of it.
func (s *shares) transform(o client.Object) client.Object {
	change := s.transforms[reflect.TypeOf(o)]
	if change == nil {
		return o
	}
	changed, err := change(o)
	if err != nil {
		return o
	}
	return changed.(client.Object)
}

// crowded reports whether objects with the operator's label are left out in a namespace.
func (s *shares) crowded(namespace string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.kinds, func(k *kind) bool {
		in := k.spaces[namespace]
		return in != nil && !k.own && (in.left > 0 || in.before)
	})
}

// report writes the status of objects that are left out, one after the other, until ctx ends.
func (s *shares) report(r *kstatus.Reporter) manager.RunnableFunc {
	return func(ctx context.Context) error {
		for {
			select {
			case <-ctx.Done():
				return nil
			case write := <-s.reports:
				if err := write(ctx, r); err != nil && ctx.Err() == nil {
					ctrl.LoggerFrom(ctx).Error(err, "Write the status of an object that is left out")
				}
			}
		}
	}
}

func (s *shares) informer(lw toolscache.ListerWatcher, o runtime.Object, resync time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
	k, from := s.kindOf(o), toolscache.ToListerWatcherWithContext(lw)
	return toolscache.NewSharedIndexInformer(&toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := from.ListWithContext(ctx, o)
			if err != nil {
				return nil, err
			}
			if o.Continue == "" {
				k.begin()
			}
			return list, k.list(list)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			if ptr.Deref(o.SendInitialEvents, false) {
				k.begin()
			} else if k.room() {
				return nil, apierrors.NewResourceExpired("there is room for objects that were left out: list them again")
			}
			w, err := from.WatchWithContext(ctx, o)
			if err != nil {
				return nil, err
			}
			return k.follow(w, o.ResourceVersion), nil
		},
	}, o, resync, indexers)
}

// kind has the objects of a kind that are in the cache of an informer. A watch ends after five to ten minutes: then those that
// were left out are listed again, if there is room since.
type kind struct {
	*shares
	name    string
	own     bool
	spaces  map[string]*space
	lists   bool          // all is listed again
	unheard client.Object // left out of the list, which has no event of it
}

// space has what one namespace has of a kind.
type space struct {
	sizes  map[string]int64 // of what is kept, by name
	left   int              // that are left out
	before bool             // some were left out before the list, which counts until its end
	full   int64            // most bytes of the pool when an object was left out
}

func (s *shares) kindOf(o runtime.Object) *kind {
	is := reflect.TypeOf(o).Elem()
	k := &kind{shares: s, name: is.Name(), own: is.PkgPath() == reflect.TypeFor[v1alpha1.OutboxDispatcher]().PkgPath(), spaces: map[string]*space{}}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kinds = append(s.kinds, k)
	return k
}

// begin forgets all, since all is listed again.
func (k *kind) begin() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.lists, k.unheard = true, nil
	for namespace, in := range k.spaces {
		for name := range in.sizes {
			k.drop(namespace, name)
		}
		in.before, in.left, in.full = in.before || in.left > 0, 0, 0
	}
}

// end ends a list.
func (k *kind) end() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.lists = false
	for namespace, in := range k.spaces {
		in.before = false
		k.count(namespace, 0)
	}
}

// listed is an event, once after a list, that an object which was left out of it is gone at the list's version: what waits for
// a write to one of these hears nothing else.
func (k *kind) listed(version string) (e watch.Event, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.lists || k.unheard == nil {
		return e, false
	}
	o := k.unheard.DeepCopyObject().(client.Object)
	o.SetResourceVersion(version)
	k.unheard = nil
	return watch.Event{Type: watch.Deleted, Object: o}, true
}

// room reports whether a namespace with objects that are left out has more room than it had then.
func (k *kind) room() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for namespace, in := range k.spaces {
		if in.left > 0 && k.bytes[pool{namespace, k.own}] < in.full {
			return true
		}
	}
	return false
}

// list takes out of a list what has no room.
func (k *kind) list(list runtime.Object) error {
	all, err := meta.ExtractList(list)
	if err != nil {
		return err
	}
	kept := make([]runtime.Object, 0, len(all))
	for _, o := range all {
		if e := k.event(watch.Event{Type: watch.Added, Object: o}); e.Type == watch.Added {
			kept = append(kept, e.Object)
		}
	}
	if of, err := meta.ListAccessor(list); err == nil && of.GetContinue() == "" {
		k.end()
	}
	return meta.SetList(list, kept)
}

// follow passes on what [kind.event] makes of the events of a watch. Right after a list it adds one with the list's version.
func (k *kind) follow(from watch.Interface, version string) watch.Interface {
	events := make(chan watch.Event)
	to := watch.NewProxyWatcher(events)
	send := func(e watch.Event) bool {
		select {
		case events <- e:
			return true
		case <-to.StopChan(): // nothing reads it
			return false
		}
	}
	hear := func(version string) bool {
		e, ok := k.listed(version)
		return !ok || send(e)
	}
	go func() {
		<-to.StopChan()
		from.Stop()
	}()
	go func() {
		defer close(events)
		defer to.Stop()
		if !hear(version) {
			return
		}
		for e := range from.ResultChan() {
			if e = k.event(e); !send(e) || e.Type == watch.Bookmark && !hear(e.Object.(client.Object).GetResourceVersion()) {
				return
			}
		}
	}()
	return to
}

// event makes of an event that an object without room is there one that it is gone.
func (k *kind) event(e watch.Event) watch.Event {
	o, ok := e.Object.(client.Object)
	if !ok || e.Type == watch.Bookmark {
		if ok && o.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true" {
			k.end()
		}
		return e
	}
	o = k.transform(o)
	e.Object = o
	if e.Type == watch.Deleted {
		k.forget(o.GetNamespace(), o.GetName())
	} else if !k.keep(o, e.Type == watch.Added) {
		e.Type = watch.Deleted
	}
	return e
}

// keep reports whether there is room for an object, and counts it.
func (k *kind) keep(o client.Object, added bool) bool {
	size, namespace, name, most := objectBytes+bytesOf(reflect.ValueOf(o)), o.GetNamespace(), o.GetName(), k.most/3*2
	if k.own {
		size, most = max(size, ownBytes), k.most/3
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	in := k.spaces[namespace]
	if in == nil {
		in = &space{sizes: map[string]int64{}}
		k.spaces[namespace] = in
	}
	p := pool{namespace, k.own}
	before, had := k.bytes[p], k.drop(namespace, name)
	if k.bytes[p]+size <= most {
		in.sizes[name] = size
		k.bytes[p] += size
		if !had && !added {
			k.count(namespace, -1)
		}
		return true
	}
	if in.full = max(in.full, before); had || added {
		k.count(namespace, 1)
	}
	if k.lists {
		k.unheard = o
	}
	if k.own && in.left <= reportedOf {
		left := reflect.New(reflect.TypeOf(o).Elem()).Interface().(client.Object) // o is the informer's
		left.SetNamespace(namespace)
		left.SetName(name)
		select {
		case k.reports <- func(ctx context.Context, r *kstatus.Reporter) error { return k.reportLeftOut(ctx, r, left) }:
		default: // the metric says it
		}
	}
	return false
}

// reportLeftOut writes the status of an object that is left out, if it still is.
func (k *kind) reportLeftOut(ctx context.Context, r *kstatus.Reporter, o client.Object) error {
	k.mu.Lock()
	in := k.spaces[o.GetNamespace()]
	over := in == nil || in.left == 0 || in.sizes[o.GetName()] > 0
	k.mu.Unlock()
	if over {
		return nil
	}
	return r.LeftOut(ctx, o)
}

// forget takes an object out that is gone.
func (k *kind) forget(namespace, name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	gone := -1
	if k.drop(namespace, name) {
		gone = 0
	}
	k.count(namespace, gone)
}

// drop reports whether the object was kept.
func (k *kind) drop(namespace, name string) bool {
	in, p := k.spaces[namespace], pool{namespace, k.own}
	if in == nil {
		return false
	}
	size, had := in.sizes[name]
	delete(in.sizes, name)
	if k.bytes[p] -= size; k.bytes[p] == 0 {
		delete(k.bytes, p)
	}
	return had
}

// count adds to the number of objects that are left out. It forgets a namespace without objects.
func (k *kind) count(namespace string, n int) {
	in := k.spaces[namespace]
	if in == nil {
		return
	}
	if in.left = max(0, in.left+n); in.left > 0 {
		leftOut.WithLabelValues(namespace, k.name).Set(float64(in.left))
		return
	}
	leftOut.DeleteLabelValues(namespace, k.name)
	if len(in.sizes) == 0 && !in.before {
		delete(k.spaces, namespace)
	}
}
