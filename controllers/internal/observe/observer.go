package observe

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/outbox-operator/outbox-operator/api/status"
)

const (
	// inFlight is how many pods are asked at once; retries how many of them may be pods that did not answer
	// the last time, so that those never keep the others waiting.
	inFlight = 32
	retries  = 8
	// perInterval is how many pods of one dispatcher are asked in an interval. Of more, each has its turn
	// less often. mostPods is how many are known of one: 100 replicas, and what a rollout adds.
	perInterval = 20
	mostPods    = 120
	// kept is for how many intervals an answer counts; slowly after how many a small change of a count is told.
	kept   = 3
	slowly = 6
	// firstPause is the pause before a pod that did not answer is asked again, or the interval where that is
	// shorter. It doubles with each failure, to longestPause times the first: 10 s to 2 min.
	firstPause   = 10 * time.Second
	longestPause = 12
	// silentAfter is how many questions in a row a pod leaves unanswered before it is called silent. The
	// first may come while it starts.
	silentAfter = 2
)

// Observer asks the pods of all dispatchers.
type Observer struct {
	url      func(*corev1.Pod) string
	ask      func(ctx context.Context, url string) (*status.Status, error)
	interval time.Duration
	slots    chan struct{}
	retries  chan struct{}

	ctx  context.Context
	tell func(types.NamespacedName)

	mu          sync.Mutex
	dispatchers map[types.NamespacedName]*dispatcher
}

// dispatcher is what is known of one OutboxDispatcher.
type dispatcher struct {
	name   string // what its pods call themselves
	pods   map[types.UID]*pod
	order  []types.UID // as the last pass named them
	told   *status.Backlog
	toldAt time.Time
}

// pod is what is known of one pod.
type pod struct {
	name, url, version string
	timer              *time.Timer // the next question
	asking, changed    bool        // changed while it was asked
	askedAt            time.Time
	tried              bool // it was asked once
	failures           int  // in a row
	answer             *status.Status
	heardAt            time.Time
	essence            string
}

// Heard is what the pods of a dispatcher said last.
type Heard struct {
	// Answers are of the pods that answered within the last three intervals, in the order of the pods.
	Answers []status.Status
	// Pods are the pods that gave the answers.
	Pods []types.UID
	// Silent counts the pods that were asked, and asked again, and did not answer for three intervals.
	Silent int
	// Unasked counts the pods of which nobody knows yet whether they answer. Their first answer, or that
	// there was none, is told within seconds. Pods that wait for their turn do not count.
	Unasked int
}

// New returns an Observer that asks each pod once in an interval.
func New(client *Client, interval time.Duration) *Observer {
	return &Observer{url: client.URL, ask: client.ask, interval: interval, slots: make(chan struct{}, inFlight), retries: make(chan struct{}, retries),
		dispatchers: map[types.NamespacedName]*dispatcher{}}
}

// Start lets the Observer ask until ctx ends. It calls tell with each dispatcher of which something new was
// heard; tell must not block. Start comes before the first call of Observe.
func (o *Observer) Start(ctx context.Context, tell func(types.NamespacedName)) {
	o.ctx, o.tell = ctx, tell
}

// Observe says which pods a dispatcher has now, and returns what they said last. The name is what they call
// themselves: an answer under another one is none, because the pod's address was given away. Pods that are
// new or that changed are asked at once, others are forgotten.
func (o *Observer) Observe(key types.NamespacedName, name string, pods []corev1.Pod) Heard {
	o.mu.Lock()
	defer o.mu.Unlock()
	d := o.dispatchers[key]
	if d == nil {
		d = &dispatcher{name: name, pods: map[types.UID]*pod{}}
		o.dispatchers[key] = d
	}
	known := d.pods
	d.pods, d.order = map[types.UID]*pod{}, nil
	for i := range pods {
		if !Running(&pods[i]) || len(d.order) == mostPods {
			continue
		}
		uid := pods[i].UID
		p := known[uid]
		delete(known, uid)
		d.pods[uid], d.order = o.meet(key, p, &pods[i], len(d.order)), append(d.order, uid)
	}
	for _, gone := range known {
		gone.timer.Stop()
	}
	heard := d.heard()
	d.told, d.toldAt = NewestBacklog(heard.Answers), time.Now()
	return heard
}

// Forget forgets a dispatcher.
func (o *Observer) Forget(key types.NamespacedName) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if d := o.dispatchers[key]; d != nil {
		for _, p := range d.pods {
			p.timer.Stop()
		}
		delete(o.dispatchers, key)
	}
}

// meet returns what is known of a pod. One that is new or has changed is asked soon: at once, unless it was
// asked a moment ago or many are before it.
func (o *Observer) meet(key types.NamespacedName, p *pod, now *corev1.Pod, before int) *pod {
	switch {
	case p == nil:
		p = &pod{name: now.Name, url: o.url(now), version: now.ResourceVersion}
		wait := time.Duration(before/perInterval) * o.interval
		p.timer = time.AfterFunc(wait, func() { o.visit(key, now.UID, p) })
	case p.version != now.ResourceVersion:
		p.url, p.version, p.failures = o.url(now), now.ResourceVersion, 0
		if p.changed = p.asking; !p.asking {
			p.timer.Reset(max(0, o.interval/10-time.Since(p.askedAt)))
		}
	}
	return p
}

// visit asks a pod, and sets the time of its next question.
func (o *Observer) visit(key types.NamespacedName, uid types.UID, p *pod) {
	o.mu.Lock()
	busy, url, again := p.asking, p.url, p.failures > 0
	p.asking, p.askedAt = true, time.Now()
	o.mu.Unlock()
	if busy {
		return
	}
	slots := []chan struct{}{o.slots}
	if again {
		slots = []chan struct{}{o.retries, o.slots}
	}
	for _, slot := range slots {
		select {
		case slot <- struct{}{}:
			defer func() { <-slot }()
		case <-o.ctx.Done():
			return
		}
	}
	current, err := o.ask(o.ctx, url)
	if o.ctx.Err() == nil && o.record(key, uid, p, current, err) {
		o.tell(key)
	}
}

// record keeps an answer, or that there was none, and reports whether to tell.
func (o *Observer) record(key types.NamespacedName, uid types.UID, p *pod, current *status.Status, err error) (news bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	d := o.dispatchers[key]
	if d == nil || d.pods[uid] != p {
		return false // gone meanwhile
	}
	p.asking = false
	defer func() {
		if p.changed { // what it said may be about before
			p.changed, p.failures = false, 0
			p.timer.Reset(o.interval / 10)
		}
	}()
	period := o.interval * time.Duration(max(1, (len(d.pods)+perInterval-1)/perInterval))
	if err == nil && current.Name == d.name {
		now := essence(*current)
		news = p.answer == nil || now != p.essence
		p.answer, p.heardAt, p.essence, p.failures, p.tried = current, time.Now(), now, 0, true
		news = news || o.counted(d)
		p.timer.Reset(period*9/10 + rand.N(period/5+1)) // so that pods of one time do not stay together
		return news
	}
	p.failures++
	first := !p.tried
	p.tried = true
	expires := time.Until(p.heardAt.Add(kept * period))
	if news = p.answer != nil && expires <= 0; news {
		p.answer = nil
		p.failures = max(p.failures, silentAfter)
	} else {
		news = p.answer == nil && (first || p.failures == silentAfter)
	}
	if news && !first {
		ctrl.Log.WithName("observe").Info("A pod does not tell its status", "namespace", key.Namespace, "dispatcher", key.Name, "pod", p.name, "cause", cause(err))
	}
	pause := o.pause(p.failures)
	if p.answer != nil {
		pause = min(pause, expires)
	}
	p.timer.Reset(pause)
	return news
}

func cause(err error) string {
	if err == nil {
		return "it answers for another dispatcher"
	}
	return err.Error()
}

// counted reports whether the newest count is worth telling: at once when it moved, later when it differs.
func (o *Observer) counted(d *dispatcher) bool {
	now := NewestBacklog(d.heard().Answers)
	return moved(d.told, now) || time.Since(d.toldAt) >= slowly*o.interval && differs(d.told, now)
}

// pause is how long a pod that did not answer is left alone.
func (o *Observer) pause(failures int) time.Duration {
	first := min(o.interval, firstPause)
	return first * time.Duration(min(1<<min(failures-1, 10), longestPause))
}

func (d *dispatcher) heard() (h Heard) {
	for i, uid := range d.order {
		switch p := d.pods[uid]; {
		case !p.tried && i < perInterval:
			h.Unasked++
		case p.answer != nil:
			h.Answers, h.Pods = append(h.Answers, *p.answer), append(h.Pods, uid)
		case p.failures >= silentAfter:
			h.Silent++
		}
	}
	return h
}
