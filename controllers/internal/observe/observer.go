// Package observe caches the status of dispatcher pods.
//
// An [Observer] polls each pod every interval, in goroutines of its own, and caches the responses. A pass of the
// reconciler lists the current pods and gets their cached status; no pass waits for a pod. When a response differs
// from the last one in what matters, the Observer triggers a pass.
package observe

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
)

const (
	// inFlight is how many pods are polled at once; retries how many of them may be pods that did not respond
	// the last time, so that those never delay the others.
	inFlight = 32
	retries  = 8
	// perInterval is how many pods of one dispatcher are polled in an interval; with more, each is polled less
	// often. mostPods is how many are known of one: 100 replicas, and what a rollout adds.
	perInterval = 20
	mostPods    = 120
	// validFor is for how many intervals a response counts; smallChanges after how many a small change of a count
	// triggers a pass.
	validFor     = 3
	smallChanges = 6
	// firstPause is the pause before a pod that did not respond is polled again, or the interval where that is
	// shorter. It doubles with each failure, to longestPause times the first: 10 s to 2 min.
	firstPause   = 10 * time.Second
	longestPause = 12
	// silentAfter is how many requests in a row fail before a pod is silent: the first may be sent while it starts.
	silentAfter = 2
	// maxSizes bounds the statuses of all pods together, in bytes of JSON: half of what config/README.md says, since there is an
	// Observer for replays too. Beyond it a namespace that has more than its part keeps no sentences and no lists.
	maxSizes = 12 << 20
)

// Observer polls the pods of all dispatchers.
type Observer struct {
	url      func(*corev1.Pod) string
	get      func(ctx context.Context, url string) (*status.Status, error)
	interval time.Duration
	slots    chan struct{}
	retries  chan struct{}

	ctx    context.Context
	notify func(types.NamespacedName)

	mu          sync.Mutex
	dispatchers map[types.NamespacedName]*dispatcher
	sizes       map[string]int // of the statuses of each namespace
	size, most  int            // of all, and its bound
}

// dispatcher is what is known of one OutboxDispatcher.
type dispatcher struct {
	name      string // of its pods in their status
	pods      map[types.UID]*pod
	order     []types.UID     // of the last pass
	backlog   *status.Backlog // of the last pass
	backlogAt time.Time
}

// pod is what is known of one pod.
type pod struct {
	name, url, version string
	timer              *time.Timer // of the next request
	polling, changed   bool        // changed during the request
	polledAt           time.Time
	polled             bool // at least once
	failures           int  // in a row
	status             *status.Status
	size               int // of the status
	respondedAt        time.Time
	essence            string
}

// Observation is the cached status of a dispatcher's pods.
type Observation struct {
	// Statuses of the pods that responded within the last three intervals, in the order of the pods.
	Statuses []status.Status
	// Pods are the pods of the Statuses.
	Pods []types.UID
	// Silent counts the pods that did not respond to two requests in a row, nor within three intervals.
	Silent int
	// Unpolled counts the pods whose first request has not ended. A pass is triggered when it does, within seconds.
	// Pods that wait for their turn do not count.
	Unpolled int
}

// New returns an Observer that polls each pod once in an interval.
func New(client *Client, interval time.Duration) *Observer {
	return &Observer{url: client.URL, get: client.get, interval: interval, slots: make(chan struct{}, inFlight), retries: make(chan struct{}, retries),
		dispatchers: map[types.NamespacedName]*dispatcher{}, sizes: map[string]int{}, most: maxSizes}
}

// Start lets the Observer poll until ctx ends. It calls notify with each dispatcher whose observation has changed; notify
// must not block. Start must be called before Observe.
func (o *Observer) Start(ctx context.Context, notify func(types.NamespacedName)) {
	o.ctx, o.notify = ctx, notify
}

// Observe sets the current pods of a dispatcher, and returns their cached status. The name is that in their status: a
// response with another one does not count, because the pod's address was reassigned. New and changed pods are polled
// at once, and pods that are not listed are forgotten.
func (o *Observer) Observe(key types.NamespacedName, name string, pods []corev1.Pod) Observation {
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
		o.resize(key.Namespace, gone, 0)
	}
	observation := d.observation()
	d.backlog, d.backlogAt = NewestBacklog(observation.Statuses), time.Now()
	return observation
}

// Forget forgets a dispatcher.
func (o *Observer) Forget(key types.NamespacedName) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if d := o.dispatchers[key]; d != nil {
		for _, p := range d.pods {
			p.timer.Stop()
			o.resize(key.Namespace, p, 0)
		}
		delete(o.dispatchers, key)
	}
}

// meet returns what is known of a pod. A new or changed pod is polled soon: at once, unless it was polled a moment ago or
// many are before it.
func (o *Observer) meet(key types.NamespacedName, p *pod, now *corev1.Pod, before int) *pod {
	switch {
	case p == nil:
		p = &pod{name: now.Name, url: o.url(now), version: now.ResourceVersion}
		wait := time.Duration(before/perInterval) * o.interval
		p.timer = time.AfterFunc(wait, func() { o.poll(key, now.UID, p) })
	case p.version != now.ResourceVersion:
		p.url, p.version, p.failures = o.url(now), now.ResourceVersion, 0
		if p.changed = p.polling; !p.polling {
			p.timer.Reset(max(0, o.interval/10-time.Since(p.polledAt)))
		}
	}
	return p
}

// poll requests a pod's status, and sets the time of its next request.
func (o *Observer) poll(key types.NamespacedName, uid types.UID, p *pod) {
	o.mu.Lock()
	busy, url, again := p.polling, p.url, p.failures > 0
	p.polling, p.polledAt = true, time.Now()
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
	current, err := o.get(o.ctx, url)
	if o.ctx.Err() == nil && o.record(key, uid, p, current, err) {
		o.notify(key)
	}
}

// record caches a response, or a failure, and reports whether a pass must see it.
func (o *Observer) record(key types.NamespacedName, uid types.UID, p *pod, current *status.Status, err error) (changed bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	d := o.dispatchers[key]
	if d == nil || d.pods[uid] != p {
		return false // forgotten meanwhile
	}
	p.polling = false
	defer func() {
		if p.changed { // the response may be from before the change
			p.changed, p.failures = false, 0
			p.timer.Reset(o.interval / 10)
		}
	}()
	period := o.interval * time.Duration(max(1, (len(d.pods)+perInterval-1)/perInterval))
	if err == nil && current.Name == d.name {
		now := essence(*current)
		changed = p.status == nil || now != p.essence
		size := len(encode(*current))
		if !o.room(key.Namespace, p, size) {
			*current, size = least(*current), 0
		}
		o.resize(key.Namespace, p, size)
		p.status, p.respondedAt, p.essence, p.failures, p.polled = current, time.Now(), now, 0, true
		changed = changed || o.countChanged(d)
		p.timer.Reset(period*9/10 + rand.N(period/5+1)) // so that pods that started together are not polled together
		return changed
	}
	p.failures++
	first := !p.polled
	p.polled = true
	expires := time.Until(p.respondedAt.Add(validFor * period))
	if changed = p.status != nil && expires <= 0; changed {
		p.status = nil
		o.resize(key.Namespace, p, 0)
		p.failures = max(p.failures, silentAfter)
	} else {
		changed = p.status == nil && (first || p.failures == silentAfter)
	}
	if changed && !first {
		log.Log.WithName("observe").Info("A pod does not report its status", "namespace", key.Namespace, "dispatcher", key.Name, "pod", p.name, "cause", cause(err))
	}
	pause := o.pause(p.failures)
	if p.status != nil {
		pause = min(pause, expires)
	}
	p.timer.Reset(pause)
	return changed
}

// room reports whether a pod's status of the size may be kept whole: all together are within their bound, or those of the
// namespace within their part of it.
func (o *Observer) room(namespace string, p *pod, size int) bool {
	more := size - p.size
	return o.size+more <= o.most || o.sizes[namespace]+more <= o.most/max(1, len(o.sizes))
}

// resize counts a pod's status with the size.
func (o *Observer) resize(namespace string, p *pod, size int) {
	o.size += size - p.size
	o.sizes[namespace] += size - p.size
	if p.size = size; o.sizes[namespace] == 0 {
		delete(o.sizes, namespace)
	}
}

func cause(err error) string {
	if err == nil {
		return "it responds for another dispatcher"
	}
	return err.Error()
}

// countChanged reports whether a pass must see the newest count: at once when it moved, later when it differs.
func (o *Observer) countChanged(d *dispatcher) bool {
	now := NewestBacklog(d.observation().Statuses)
	return moved(d.backlog, now) || time.Since(d.backlogAt) >= smallChanges*o.interval && differs(d.backlog, now)
}

// pause is the time until a pod that did not respond is polled again.
func (o *Observer) pause(failures int) time.Duration {
	first := min(o.interval, firstPause)
	return first * time.Duration(min(1<<min(failures-1, 10), longestPause))
}

func (d *dispatcher) observation() (seen Observation) {
	for i, uid := range d.order {
		switch p := d.pods[uid]; {
		case !p.polled && i < perInterval:
			seen.Unpolled++
		case p.status != nil:
			seen.Statuses, seen.Pods = append(seen.Statuses, *p.status), append(seen.Pods, uid)
		case p.failures >= silentAfter:
			seen.Silent++
		}
	}
	return seen
}

const (
	// timeout bounds one request.
	timeout = 2 * time.Second
	// maxHeader and maxBody bound a response. A pod sends at most status.MaxBrief; a later version may send more.
	maxHeader = 16 << 10
	maxBody   = 4 * status.MaxBrief
)

// Client requests the status of pods. The memory of a response is bounded, whatever a pod sends.
type Client struct {
	// URL of a pod's status. Defaults to [PodURL].
	URL  func(*corev1.Pod) string
	http http.Client

	decoding sync.Mutex // one at a time: JSON grows when it is decoded
}

// NewClient returns a Client that goes to the pods directly, never through a proxy.
func NewClient() *Client {
	return &Client{
		URL: PodURL,
		http: http.Client{
			Timeout:       timeout,
			Transport:     &http.Transport{DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: maxHeader},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// PodURL is the brief status at the pod's address.
func PodURL(pod *corev1.Pod) string {
	return "http://" + net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(desired.Port)) + status.BriefPath
}

// Running reports whether a pod can be polled: it runs, ready or not, and is not being deleted.
func Running(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodRunning && pod.Status.PodIP != "" && pod.DeletionTimestamp == nil
}

// get returns the brief status at the URL.
func (c *Client) get(ctx context.Context, url string) (*status.Status, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s responded %s", url, resp.Status)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	if err != nil {
		return nil, fmt.Errorf("read the response of %s: %w", url, err)
	}
	if len(body) > maxBody {
		return nil, fmt.Errorf("%s responded with more than %d bytes, which no dispatcher does", url, maxBody)
	}
	c.decoding.Lock()
	defer c.decoding.Unlock()
	var current status.Status
	if err := json.Unmarshal(body, &current); err != nil {
		return nil, fmt.Errorf("%s did not respond with a status: %w", url, err)
	}
	current = current.Brief() // also of a pod that sends more
	return &current, nil
}
