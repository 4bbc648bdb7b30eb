// Package pace lets a few objects at a time take what an upgrade of the operator brings: pods that roll, and migrations.
package pace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
)

// Pacer grants turns. One turn covers the migration Job of an object and the rollout after it. What rolls or migrates for
// another reason, such as a changed spec, needs no turn, and counts as one for each namespace. That, and turns that last for
// long, count as one together. How long anything counts is
// measured here: who may edit a Deployment decides what that says of itself.
type Pacer struct {
	client client.Client
	limit  int
	now    func() time.Time

	mu      sync.Mutex
	counted time.Time
	before  time.Time         // the count before
	shared  bool              // several namespaces have dispatchers
	active  map[string]bool   // what rolled or migrated at the last count, and counts
	clocks  map[string]*clock // of what rolls or migrates, or did lately
	granted map[string]*turn
}

// turn is a turn that was granted.
type turn struct {
	began time.Time // when it was granted
	since time.Time // then, or when it was active last
	done  bool
	let   bool // without having waited
}

// clock says how long something has rolled or migrated, and when it did last.
type clock struct {
	used time.Duration
	last time.Time
}

const (
	// countsFor is how long what rolls or migrates counts, in sum. It counts again when it was at rest for as long.
	countsFor = 10 * time.Minute
	// namedAfter is how long something rolls or migrates until [Pacer.Holders] names it, one of the first few.
	namedAfter = 30 * time.Second
	named      = 3
	// slowAfter is how long an object may have its turn, or be active, until the turn is one of those that count as together, like
	// what is active without one: whose pods start soon pass those that hang.
	slowAfter = time.Minute
	together  = 1
	// countEvery is the time between two counts of all Deployments and Jobs.
	countEvery = time.Second
	// grantedFor is how long a turn lasts that is not taken.
	grantedFor = time.Minute
	// startsWithin is how long a migration counts of which no pod runs.
	startsWithin = 5 * time.Minute
)

// New returns a Pacer that lets limit objects roll or migrate at a time. It reads with c, which has a cache.
func New(c client.Client, limit int) *Pacer {
	return &Pacer{client: c, limit: limit, now: time.Now, clocks: map[string]*clock{}, granted: map[string]*turn{}}
}

func keyOf(o desired.Owner) string {
	return desired.Kind(o) + "/" + o.GetNamespace() + "/" + o.GetName()
}

func namespaceOf(who string) string { return strings.Split(who, "/")[1] }

// May reports whether it is the object's turn. It returns an error when the cache cannot be read.
func (p *Pacer) May(ctx context.Context, o desired.Owner) (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := p.now(); now.Sub(p.counted) > countEvery {
		if err := p.count(ctx, now); err != nil {
			return false, err
		}
	}
	who := keyOf(o)
	if p.granted[who] == nil && !p.free(who) {
		return false, nil
	}
	p.grant(who, false)
	return true, nil
}

// Let grants the object a turn at once: a changed spec waits for it.
func (p *Pacer) Let(o desired.Owner) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.grant(keyOf(o), true)
}

func (p *Pacer) grant(who string, let bool) {
	if t := p.granted[who]; t != nil {
		t.done = false
		return
	}
	p.granted[who] = &turn{began: p.now(), since: p.now(), let: let}
}

// Done says that the object needs its turn no more.
func (p *Pacer) Done(o desired.Owner) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t := p.granted[keyOf(o)]; t != nil {
		t.done = true
	}
}

// free reports whether a turn is left for an object. What has its turn or is active for slowAfter, what has its turn by
// [Pacer.Let], and what is active without one count as one together, and not where there is one turn alone. An object that is active
// waits like the rest: each Deployment is for a moment when a new version annotates it. Where several namespaces have dispatchers,
// each leaves one to the others.
func (p *Pacer) free(who string) bool {
	most := p.limit
	if p.shared {
		most = max(1, p.limit-1)
	}
	granted, without, taken, others := map[string]int{}, map[string]int{}, 0, 0
	for holder, t := range p.granted {
		granted[namespaceOf(holder)]++
		if c := p.clocks[holder]; t.let || p.now().Sub(t.began) >= slowAfter || c != nil && c.used >= slowAfter {
			others++
		} else {
			taken++
		}
	}
	for holder := range p.active {
		if p.granted[holder] == nil && holder != who {
			without[namespaceOf(holder)] = 1
		}
	}
	others += len(without)
	return taken+min(others, together, p.limit-1) < p.limit && granted[namespaceOf(who)]+without[namespaceOf(who)] < most
}

// Holders is a sentence that names those that roll or migrate for longest and count, empty when none does for long.
func (p *Pacer) Holders() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	long := slices.DeleteFunc(slices.Sorted(maps.Keys(p.active)), func(who string) bool { return p.clocks[who].used < namedAfter })
	if len(long) == 0 {
		return ""
	}
	slices.SortStableFunc(long, func(a, b string) int { return cmp.Compare(p.clocks[b].used, p.clocks[a].used) })
	return " Those that roll or migrate for longest: " + strings.Join(long[:min(len(long), named)], ", ") + "."
}

// count finds what is active. It ends the turns that are done, when what they began has ended; and those that were not taken.
func (p *Pacer) count(ctx context.Context, now time.Time) error {
	var deployments appsv1.DeploymentList
	var jobs batchv1.JobList
	of := func(component string) client.MatchingLabels {
		return client.MatchingLabels{desired.LabelComponent: component, desired.LabelManagedBy: desired.Manager}
	}
	if err := errors.Join(p.client.List(ctx, &deployments, of(desired.ComponentDispatcher), client.UnsafeDisableDeepCopy),
		p.client.List(ctx, &jobs, of(desired.ComponentMigration), client.UnsafeDisableDeepCopy)); err != nil {
		return fmt.Errorf("list what rolls and migrates: %w", err)
	}
	p.before, p.counted, p.active, p.shared = p.counted, now, map[string]bool{}, false
	maps.DeleteFunc(p.clocks, func(_ string, c *clock) bool { return now.Sub(c.last) >= countsFor })
	for i := range deployments.Items {
		d := &deployments.Items[i]
		p.shared = p.shared || d.Namespace != deployments.Items[0].Namespace
		if !ended(d) {
			if err := p.add(ctx, d); err != nil {
				return err
			}
		}
	}
	for i := range jobs.Items {
		if j := &jobs.Items[i]; !finished(j, now) {
			if err := p.add(ctx, j); err != nil {
				return err
			}
		}
	}
	for who, t := range p.granted {
		switch {
		case t.done && !p.active[who]:
			delete(p.granted, who)
		case p.active[who]:
			t.since = now
		case now.Sub(t.since) >= grantedFor:
			delete(p.granted, who)
		}
	}
	return nil
}

// runs counts what is active, for so long. It adds what has passed since the count before, if it was active then.
func (p *Pacer) runs(who string) {
	c := p.clocks[who]
	if c == nil {
		c = &clock{last: p.counted}
		p.clocks[who] = c
	}
	if c.last.Equal(p.before) {
		c.used += p.counted.Sub(p.before)
	}
	if c.last = p.counted; c.used < countsFor {
		p.active[who] = true
	}
}

// add counts the owner of an object. What has none counts for nothing, whatever its labels are: everybody may set them.
func (p *Pacer) add(ctx context.Context, o metav1.Object) error {
	ref := metav1.GetControllerOfNoCopy(o)
	if ref == nil {
		return nil
	}
	for _, owner := range []desired.Owner{&v1alpha1.OutboxDispatcher{}, &v1alpha1.Outbox{}} {
		if desired.Kind(owner) != ref.Kind {
			continue
		}
		err := p.client.Get(ctx, types.NamespacedName{Namespace: o.GetNamespace(), Name: ref.Name}, owner)
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("read %s %s: %w", ref.Kind, ref.Name, err)
		}
		if err == nil && owner.GetUID() == ref.UID {
			p.runs(keyOf(owner))
		}
	}
	return nil
}

// ended reports whether a rollout has ended, well or not: one that is stuck delays no other, and nothing rolls without
// replicas, or while a user has paused it.
func ended(d *appsv1.Deployment) bool {
	replicas := int32(1)
	if d.Spec.Replicas != nil {
		replicas = *d.Spec.Replicas
	}
	if replicas == 0 || d.Spec.Paused {
		return true
	}
	if d.Status.ObservedGeneration < d.Generation {
		return false
	}
	updated := d.Status.Replicas == d.Status.UpdatedReplicas
	for _, c := range d.Status.Conditions {
		if c.Type == appsv1.DeploymentProgressing && (c.Status == corev1.ConditionFalse || updated && c.Reason == "NewReplicaSetAvailable") {
			return true
		}
	}
	return updated && d.Status.UpdatedReplicas == replicas && d.Status.AvailableReplicas >= replicas
}

// finished reports whether a migration has ended, or delays no other: it is suspended, or its pod does not start.
func finished(j *batchv1.Job, now time.Time) bool {
	for _, c := range j.Status.Conditions {
		if (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue {
			return true
		}
	}
	began := j.Status.StartTime
	stuck := began != nil && now.Sub(began.Time) >= startsWithin && ptr.Deref(j.Status.Ready, 0) == 0
	return stuck || ptr.Deref(j.Spec.Suspend, false)
}
