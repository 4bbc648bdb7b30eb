package pace

import (
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// world is a pacer of two turns, with the objects that it counts and a clock.
type world struct {
	t     *testing.T
	pacer *Pacer
	c     client.Client
	at    time.Time
}

func newWorld(t *testing.T) *world {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, appsv1.AddToScheme, batchv1.AddToScheme} {
		need.OK(t, add(scheme))
	}
	w := &world{t: t, c: fake.NewClientBuilder().WithScheme(scheme).Build(), at: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	w.pacer = New(w.c, 2)
	w.pacer.now = func() time.Time { return w.at }
	for _, name := range []string{"a", "b", "c", "d"} {
		w.create(dispatcher(name))
	}
	w.create(outbox("shop"))
	return w
}

func meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name)}
}
func dispatcher(name string) *v1alpha1.OutboxDispatcher {
	return &v1alpha1.OutboxDispatcher{ObjectMeta: meta(name)}
}
func outbox(name string) *v1alpha1.Outbox { return &v1alpha1.Outbox{ObjectMeta: meta(name)} }

// owned is the metadata of what is made for an owner.
func owned(o desired.Owner, component string) metav1.ObjectMeta {
	m := meta(o.GetName() + "-" + component)
	m.Labels = desired.Labels(o, component)
	m.Generation = 2
	m.OwnerReferences = []metav1.OwnerReference{{Kind: desired.Kind(o), Name: o.GetName(), UID: o.GetUID(), Controller: ptr.To(true)}}
	return m
}

// rolls is a Deployment of the owner's that rolls.
func rolls(o desired.Owner, replicas int32) *appsv1.Deployment {
	return &appsv1.Deployment{ObjectMeta: owned(o, desired.ComponentDispatcher), Spec: appsv1.DeploymentSpec{Replicas: &replicas}, Status: appsv1.DeploymentStatus{ObservedGeneration: 1}}
}

func (w *world) create(o client.Object) {
	w.t.Helper()
	need.OK(w.t, w.c.Create(w.t.Context(), o))
}

func (w *world) update(o client.Object) {
	w.t.Helper()
	need.OK(w.t, w.c.Status().Update(w.t.Context(), o))
}

// later lets the time pass, so that the pacer counts again.
func (w *world) later(d time.Duration) { w.at = w.at.Add(d) }

func (w *world) expect(o desired.Owner, want bool) {
	w.t.Helper()
	if may, err := w.pacer.May(w.t.Context(), o); err != nil || may != want {
		w.t.Errorf("may %s: %v, %v; want %v", o.GetName(), may, err, want)
	}
}

func TestSoManyHaveATurn(t *testing.T) {
	w := newWorld(t)
	w.expect(dispatcher("a"), true)
	w.expect(outbox("shop"), true)
	w.expect(dispatcher("b"), false)
	w.expect(dispatcher("a"), true) // it has one
	w.pacer.Done(dispatcher("a"))
	w.expect(dispatcher("a"), true) // it needs it again, before the next count
	w.later(2 * countEvery)
	w.expect(dispatcher("b"), false)
	w.pacer.Done(dispatcher("a"))
	w.expect(dispatcher("b"), false) // what it began may not be in the last count
	w.later(2 * countEvery)
	w.expect(dispatcher("b"), true)
	w.expect(dispatcher("c"), false)
	w.pacer.Let(dispatcher("c")) // a changed spec
	w.expect(dispatcher("c"), true)
}

// Dispatchers that cannot roll do not end an upgrade.
func TestATurnThatIsNotTakenExpires(t *testing.T) {
	w := newWorld(t)
	w.expect(dispatcher("a"), true)
	w.expect(dispatcher("b"), true)
	w.later(grantedFor - time.Second)
	w.expect(dispatcher("c"), false)
	w.later(2 * time.Second)
	w.expect(dispatcher("c"), true)
}

// One turn covers the migration and the rollout after it, as long as they count.
func TestATurnLastsForMigrationAndRollout(t *testing.T) {
	w := newWorld(t)
	w.expect(dispatcher("a"), true)
	w.expect(dispatcher("b"), true)
	job := &batchv1.Job{ObjectMeta: owned(dispatcher("a"), desired.ComponentMigration)}
	w.create(job)
	w.later(grantedFor / 2)
	w.expect(dispatcher("b"), true)
	for range 8 {
		w.later(grantedFor)
		w.expect(dispatcher("b"), true)
		w.expect(dispatcher("c"), false)
	}
	job.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
	w.update(job)
	w.later(grantedFor / 2)
	w.expect(dispatcher("b"), true)
	w.expect(dispatcher("c"), false) // a is about to roll
	deployment := rolls(dispatcher("a"), 1)
	w.create(deployment)
	w.create(rolls(dispatcher("b"), 1))
	w.pacer.Done(dispatcher("a"))
	w.pacer.Done(dispatcher("b"))
	w.later(2 * countEvery)
	w.expect(dispatcher("c"), false) // a rolls
	deployment.Status = appsv1.DeploymentStatus{ObservedGeneration: 2, Replicas: 1, UpdatedReplicas: 1, AvailableReplicas: 1}
	w.update(deployment)
	w.later(2 * countEvery)
	w.expect(dispatcher("c"), true)
}

// What rolls without a turn counts: pods of a changed spec, and those from before the manager began. A stranger's Deployment
// does not, and neither does a standby, a rollout that is stuck or that a user has paused, or one that has ended and whose pod
// fails.
func TestWhatRollsCounts(t *testing.T) {
	w := newWorld(t)
	w.create(rolls(dispatcher("a"), 1))
	foreign := rolls(dispatcher("stranger"), 1)
	w.create(foreign)
	other := rolls(dispatcher("b"), 1)
	other.Name, other.OwnerReferences[0].UID = "other", "other"
	w.create(other)
	w.create(rolls(dispatcher("b"), 0))
	paused := rolls(dispatcher("paused"), 1)
	paused.Spec.Paused = true
	w.create(dispatcher("paused"))
	w.create(paused)
	for name, progressing := range map[string]appsv1.DeploymentCondition{"c": {Status: corev1.ConditionFalse}, "d": {Status: corev1.ConditionTrue, Reason: "NewReplicaSetAvailable"}} {
		d := rolls(dispatcher(name), 1)
		progressing.Type = appsv1.DeploymentProgressing
		d.Status = appsv1.DeploymentStatus{ObservedGeneration: 2, Replicas: 1, UpdatedReplicas: 1, Conditions: []appsv1.DeploymentCondition{progressing}}
		w.create(d)
	}
	w.expect(outbox("shop"), true)
	w.expect(dispatcher("b"), false)
	w.expect(dispatcher("a"), true) // it rolls anyway
}

// A migration counts while it may be at work: until its pod has had time to start, and as long as that runs.
func TestMigrationsCountWhileTheyRun(t *testing.T) {
	for name, c := range map[string]struct {
		suspended bool
		began     time.Duration // before now; 0 for not yet
		ready     int32
		counts    bool
	}{
		"new":                    {counts: true},
		"starts":                 {began: startsWithin - time.Second, counts: true},
		"runs":                   {began: time.Hour, ready: 1, counts: true},
		"its pod does not start": {began: startsWithin},
		"suspended":              {suspended: true},
		"suspended as it ran":    {suspended: true, ready: 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			job := &batchv1.Job{ObjectMeta: owned(dispatcher("a"), desired.ComponentMigration), Spec: batchv1.JobSpec{Suspend: &c.suspended}, Status: batchv1.JobStatus{Ready: &c.ready}}
			if c.began > 0 {
				job.Status.StartTime = ptr.To(metav1.NewTime(w.at.Add(-c.began)))
			}
			w.create(job)
			w.expect(dispatcher("b"), true)
			w.expect(dispatcher("c"), !c.counts)
		})
	}
}

// A new version annotates all Deployments, and each is active until the cluster has seen that: none has a turn by it.
func TestWhatRollsWithoutATurnWaitsForOne(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"a", "b", "c"} {
		w.create(rolls(dispatcher(name), 1))
	}
	w.expect(dispatcher("a"), true) // the others without a turn take one, together
	w.expect(dispatcher("b"), false)
	seen := rolls(dispatcher("c"), 1)
	seen.Status = appsv1.DeploymentStatus{ObservedGeneration: 2, Replicas: 1, UpdatedReplicas: 1, AvailableReplicas: 1}
	w.update(seen)
	w.later(2 * countEvery)
	w.expect(dispatcher("a"), true)
	w.expect(dispatcher("b"), true)
	w.expect(dispatcher("c"), false)
}

// Whoever may edit a Deployment can let it roll for ever, or again and again: it counts for ten minutes in sum, with a turn or
// without, and is named meanwhile.
func TestNoRolloutCountsForLong(t *testing.T) {
	for name, granted := range map[string]bool{"with a turn": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.pacer.limit = 1
			d := rolls(dispatcher("a"), 1)
			w.create(d)
			if granted {
				w.pacer.Let(dispatcher("a"))
			}
			w.expect(dispatcher("b"), false)
			need.Want(t, "", "holders %q, want %q", w.pacer.Holders())
			for range 4 {
				w.later(countsFor/4 - time.Second)
				w.expect(dispatcher("b"), false)
				need.Want(t, " Those that roll or migrate for longest: OutboxDispatcher/shop/a.", "holders %q, want %q", w.pacer.Holders())
				rolling := d.Status
				d.Status = appsv1.DeploymentStatus{ObservedGeneration: 2, Replicas: 1, UpdatedReplicas: 1, AvailableReplicas: 1}
				w.update(d) // it is at rest for a moment
				w.later(2 * countEvery)
				w.expect(dispatcher("a"), true)
				d.Status = rolling
				w.update(d)
				w.later(2 * countEvery)
				w.expect(dispatcher("b"), false)
			}
			w.pacer.Done(dispatcher("a"))
			w.later(4 * time.Second)
			w.expect(dispatcher("b"), true)
			need.Want(t, "", "holders %q, want %q", w.pacer.Holders())
			w.pacer.Done(dispatcher("b"))

			w.later(countsFor) // it was at rest, as far as is known
			w.expect(dispatcher("b"), false)
		})
	}
}

// Of three turns a namespace takes two, where another has dispatchers too; of those that nothing granted one.
func TestANamespaceLeavesATurnToOthers(t *testing.T) {
	for name, c := range map[string]struct {
		rolling, edited []string
		shares, third   bool   // whether the other namespace has a Deployment, and a third one that rolls without a turn
		may             []bool // dispatchers a and b of this namespace, one of the other
	}{
		"alone":                        {may: []bool{true, true, true}},
		"shared":                       {shares: true, may: []bool{true, true, true}},
		"shared, one rolls":            {rolling: []string{"d"}, shares: true, may: []bool{true, false, true}},
		"shared, two roll":             {rolling: []string{"c", "d"}, shares: true, may: []bool{true, false, true}},
		"shared, and three are edited": {edited: []string{"c", "d", "e"}, shares: true, may: []bool{false, false, true}},
		"shared, two are edited, and a third rolls": {edited: []string{"c", "d"}, shares: true, third: true, may: []bool{false, false, true}},
		"alone, and three are edited":               {edited: []string{"c", "d", "e"}, may: []bool{false, false, true}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.pacer.limit = 3
			far := dispatcher("far")
			far.Namespace = "other"
			w.create(far)
			at := rolls(far, 0)
			if w.create(rolls(dispatcher("b"), 0)); c.shares {
				at.Namespace = "other"
			}
			w.create(at)
			if c.third {
				third := dispatcher("third")
				third.Namespace = "third"
				w.create(third)
				at := rolls(third, 1)
				at.Namespace = "third"
				w.create(at)
			}
			for _, name := range c.rolling {
				w.create(rolls(dispatcher(name), 1))
			}
			for _, name := range c.edited {
				w.pacer.Let(dispatcher(name))
			}
			for i, o := range []desired.Owner{dispatcher("a"), dispatcher("b"), far} {
				w.expect(o, c.may[i])
			}
		})
	}
}

// Of three turns those that hang have one after a minute, whoever they are.
func TestWhatHangsLeavesTurnsToOthers(t *testing.T) {
	w := newWorld(t)
	w.pacer.limit = 3
	for _, namespace := range []string{"eve", "mallory", "trent"} {
		w.expect(w.hangs(namespace, "1"), true)
	}
	far := w.hangs("other", "far")
	w.later(slowAfter - time.Second)
	w.expect(dispatcher("a"), false)
	w.later(4 * time.Second)
	for _, name := range []string{"a", "c"} {
		w.expect(dispatcher(name), true)
		w.expect(dispatcher("b"), true)
		w.expect(far, false)
		w.pacer.Done(dispatcher(name))
		w.later(2 * countEvery)
	}
}

// Neither a rest in between nor another turn makes a turn new. Those that hang rest in each third count.
func TestATurnAgesAlsoInLoops(t *testing.T) {
	for again, counts := range map[bool]int{false: 15, true: 48} { // whether it takes another turn then
		w := newWorld(t)
		both := []*v1alpha1.OutboxDispatcher{w.hangs("eve", "1"), w.hangs("mallory", "1")}
		for i := range counts {
			for _, d := range both {
				deployment := rolls(d, 1)
				if deployment.Namespace = d.Namespace; i%3 == 2 {
					deployment.Status = appsv1.DeploymentStatus{ObservedGeneration: 2, Replicas: 1, UpdatedReplicas: 1, AvailableReplicas: 1}
				}
				if w.update(deployment); again && i%3 == 2 {
					w.pacer.Done(d)
				}
				w.expect(d, true)
			}
			w.later(5 * time.Second)
		}
		w.expect(dispatcher("a"), true)
	}
}

// hangs is a dispatcher of a namespace of its own, whose pods never start.
func (w *world) hangs(namespace, name string) *v1alpha1.OutboxDispatcher {
	w.t.Helper()
	d := dispatcher(name)
	d.Namespace = namespace
	w.create(d)
	deployment := rolls(d, 1)
	deployment.Namespace = namespace
	w.create(deployment)
	return d
}
