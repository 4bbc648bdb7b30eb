package observe

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

var orders = types.NamespacedName{Namespace: "shop", Name: "orders"}

// stage plays the pods, and the reconciler that is notified. Its time is synctest's.
type stage struct {
	*Observer
	mu     sync.Mutex
	says   map[string]func() (*status.Status, error) // by pod
	polled map[string][]time.Duration                // when, since the start
	now    int                                       // requests that have not ended
	most   int
	again  int // those of them to silent pods that were polled before
	worst  int // the most of these
	passes int // that were triggered
	began  time.Time
	cancel context.CancelFunc
}

func newStage() *stage {
	s := &stage{Observer: New(NewClient(), 10*time.Second), says: map[string]func() (*status.Status, error){}, polled: map[string][]time.Duration{}, began: time.Now()}
	s.url = func(p *corev1.Pod) string { return p.Name }
	s.get = func(ctx context.Context, url string) (*status.Status, error) {
		s.mu.Lock()
		s.polled[url] = append(s.polled[url], time.Since(s.began))
		s.now++
		s.most = max(s.most, s.now)
		says := s.says[url]
		silentAgain := 0
		if says == nil && len(s.polled[url]) > 1 {
			silentAgain = 1
		}
		s.again += silentAgain
		s.worst = max(s.worst, s.again)
		s.mu.Unlock()
		defer func() {
			s.mu.Lock()
			s.now--
			s.again -= silentAgain
			s.mu.Unlock()
		}()
		if says == nil { // silent
			select {
			case <-ctx.Done():
			case <-time.After(timeout):
			}
			return nil, errors.New("deadline exceeded")
		}
		return says()
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	s.Start(ctx, func(types.NamespacedName) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.passes++
	})
	return s
}

// end lets all goroutines of the stage end.
func (s *stage) end() {
	s.cancel()
	s.Forget(orders)
}

func (s *stage) set(pod string, says func() (*status.Status, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.says[pod] = says
}

// triggered returns how many passes were triggered since the last call.
func (s *stage) triggered() int {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { s.passes = 0 }()
	return s.passes
}

func (s *stage) timesPolled(pod string) []time.Duration {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.polled[pod]
}

func well(change func(*status.Status)) func() (*status.Status, error) {
	return func() (*status.Status, error) {
		n := time.Now().UnixMilli()%100 + 1
		s := &status.Status{Name: "shop/orders", Source: status.Link{State: status.Reachable}, Sink: status.Link{State: status.Reachable}, Schema: status.Schema{State: "Ready"},
			Backlog: &status.Backlog{ObservedAt: time.Now(), Counts: status.Counts{Pending: 1000}},
			Journal: &status.Journal{ObservedAt: time.Now(), Records: n, Differences: n},
			Data: &status.Data{ObservedAt: time.Now(), Windows: []status.Window{{Window: "5m", Delivered: n}}, Unserved: n,
				OrphanTopics: []status.OrphanTopic{{Namespace: "shop", Topic: "x", Unserved: n}}},
			Retention:         &status.Retention{RetentionTotals: status.RetentionTotals{LastRun: status.At(time.Now().Add(-time.Hour))}},
			OldestTransaction: &status.OldestTransaction{Kind: status.Session, Name: "pid 1", Seconds: float64(time.Now().Unix() % 100)}}
		if change != nil {
			change(s)
		}
		return s, nil
	}
}

func pods(names ...string) (all []corev1.Pod) {
	for _, name := range names {
		p := running(name)
		p.UID, p.ResourceVersion = types.UID(name), "1"
		all = append(all, p)
	}
	return all
}

// look is a pass of the reconciler.
func (s *stage) look(pods []corev1.Pod) Observation { return s.Observe(orders, "shop/orders", pods) }

func TestObserverTriggersAPassForWhatMatters(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*status.Status)
		soon   bool // within an interval
		later  bool // within a minute
	}{
		"nothing":    {nil, false, false},
		"the link":   {func(s *status.Status) { s.Sink.State = status.Unreachable }, true, true},
		"the words":  {func(s *status.Status) { s.Sink.Message = "x" }, true, true},
		"the schema": {func(s *status.Status) { s.Schema.State = "TooOld" }, true, true},
		"orphans of another topic": {func(s *status.Status) {
			s.Data.OrphanTopics = append(s.Data.OrphanTopics, status.OrphanTopic{Topic: "y", Unserved: 1})
		}, true, true},
		"rows of an adopted table": {func(s *status.Status) {
			s.Data.Adoptions = []status.AdoptedRows{{Adoption: "orders", State: "waiting"}}
		}, true, true},
		"the journal differs no more": {func(s *status.Status) { s.Journal.Differences = 0 }, true, true},
		"no orphans":                  {func(s *status.Status) { s.Data = &status.Data{} }, true, true},
		"a paused topic":              {func(s *status.Status) { s.PausedTopics = []status.PausedTopic{{Topic: "a"}} }, true, true},
		"all topics paused":           {func(s *status.Status) { s.AllTopicsPaused = true }, true, true},
		"an old transaction":          {func(s *status.Status) { s.OldestTransaction.Seconds = 901 }, true, true},
		"its age":                     {func(s *status.Status) { s.OldestTransaction.Seconds = 899 }, false, false},
		"a run of retention": {func(s *status.Status) {
			s.Retention = &status.Retention{RetentionTotals: status.RetentionTotals{LastRun: status.At(time.Now()), NextRun: status.At(time.Now().Add(time.Minute)), Delivered: 7}}
		}, false, false},
		"in flight": {func(s *status.Status) { s.InFlight.Rows = 7 }, false, false},
		"its pace": {func(s *status.Status) {
			s.DeliveredPerSecond, s.LimitedBy, s.TopicLimits = 7, "Rate", []status.TopicLimit{{Topic: "orders", LimitedBy: "Rate"}}
		}, false, false},
		"more than 1 %": {func(s *status.Status) { s.Backlog.Pending = 1011 }, true, true},
		"less than 1 %": {func(s *status.Status) { s.Backlog.Pending = 1009 }, false, true},
		"to 0":          {func(s *status.Status) { s.Backlog.Pending = 0 }, true, true},
		"from 0":        {func(s *status.Status) { s.Backlog.Dead = 1 }, true, true},
		"the oldest":    {func(s *status.Status) { s.Backlog.OldestPending = status.At(s.Backlog.ObservedAt) }, false, true},
		"no count":      {func(s *status.Status) { s.Backlog = nil }, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStage()
				defer s.end()
				s.set("a", well(nil))
				if got := s.look(pods("a")); len(got.Statuses) != 0 || got.Silent != 0 || got.Unpolled != 1 {
					t.Fatalf("got %+v of a new pod, want it unpolled", got)
				}
				if got := s.triggered(); got != 1 {
					t.Fatalf("%d passes for a new pod's first status, want 1 at once", got)
				}
				if got := s.look(pods("a")); len(got.Statuses) != 1 || got.Unpolled != 0 {
					t.Fatalf("got %+v, want one status", got)
				}
				s.set("a", well(c.change))
				time.Sleep(11 * time.Second)
				if got := s.triggered(); got > 0 != c.soon {
					t.Errorf("after an interval: %d passes, want some = %v", got, c.soon)
				}
				if c.soon {
					s.look(pods("a"))
				}
				time.Sleep(61 * time.Second)
				if got := s.triggered(); got > 0 != (c.later && !c.soon) && name != "the oldest" {
					t.Errorf("after a minute: %d passes, want some = %v", got, c.later && !c.soon)
				} else if name == "the oldest" && got == 0 {
					t.Error("after a minute: no pass, want one")
				}
			})
		})
	}
}

func TestStatusIsCachedForThreeIntervals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage()
		defer s.end()
		s.set("a", well(nil))
		s.look(pods("a"))
		s.triggered()
		s.set("a", nil)
		time.Sleep(29 * time.Second)
		if got := s.look(pods("a")); len(got.Statuses) != 1 || got.Silent != 0 || s.triggered() != 0 {
			t.Errorf("before three intervals: %+v", got)
		}
		time.Sleep(4 * time.Second) // the last request has 2 s
		need.Want(t, 1, "no pass was triggered for the silent pod", s.triggered())
		if got := s.look(pods("a")); len(got.Statuses) != 0 || got.Silent != 1 {
			t.Errorf("after three intervals: %+v", got)
		}
		polled := len(s.timesPolled("a"))
		time.Sleep(10 * time.Minute)
		again := len(s.timesPolled("a")) - polled
		need.That(t, again >= 5 && again <= 9, "a silent pod was polled %d times in 10 minutes, want about every 2 minutes at the end", again)
		need.Want(t, 0, "silence triggers more than one pass", s.triggered())
		s.set("a", well(nil))
		changed := pods("a")
		changed[0].ResourceVersion = "2"
		s.look(changed)
		need.That(t, s.triggered() == 1 && len(s.look(changed).Statuses) == 1, "a changed pod was not polled at once")
	})
}

func TestSilentPodIsPolledLessOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage()
		defer s.end()
		s.look(pods("a"))
		time.Sleep(8 * time.Minute)
		got := s.timesPolled("a")
		want := []time.Duration{0, 12, 34, 76, 158, 280, 402} // 2 s of timeout, then 10, 20, 40, 80, 120, 120 s
		for i, at := range want {
			if i >= len(got) || got[i] != at*time.Second {
				t.Fatalf("polled at %v, want at %v s", got, want)
			}
		}
		need.Want(t, 2, "want one pass for the first failure, and one for the silence", s.triggered())
	})
}

// However many pods are silent, the others are polled, and never more than 32 at once.
func TestConcurrentRequestsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage()
		defer s.cancel()
		for i := range 1000 {
			name := fmt.Sprintf("pod-%d", i)
			if i%2 == 0 {
				s.set(name, func() (*status.Status, error) {
					time.Sleep(time.Millisecond)
					return well(nil)()
				})
			}
			s.Observe(types.NamespacedName{Name: name}, "shop/orders", pods(name))
		}
		time.Sleep(3 * time.Minute)
		for i := 0; i < 1000; i += 2 {
			if polled := len(s.timesPolled(fmt.Sprintf("pod-%d", i))); polled < 12 {
				t.Errorf("a pod that responds was polled %d times in 18 intervals, want 12 or more", polled)
				break
			}
		}
		s.cancel()
		time.Sleep(time.Second) // for the requests under way
		need.Want(t, inFlight, "%d pods were polled at once, want %d", s.most)
		need.Want(t, retries, "%d silent pods were polled again at once, want %d", s.worst)
		for i := range 1000 {
			s.Forget(types.NamespacedName{Name: fmt.Sprintf("pod-%d", i)})
		}
		time.Sleep(time.Second) // for a request that began until then
	})
}

// Of many pods of one dispatcher 20 are polled in an interval, each in its turn.
func TestManyPodsArePolledInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage()
		defer s.end()
		var names []string
		for i := range 200 {
			names = append(names, fmt.Sprintf("pod-%d", i))
			s.set(names[i], well(nil))
		}
		s.look(pods(names...))
		for range 60 {
			before := 0
			for _, name := range names {
				before += len(s.timesPolled(name))
			}
			time.Sleep(10 * time.Second)
			after := 0
			for _, name := range names {
				after += len(s.timesPolled(name))
			}
			if after-before > 2*perInterval {
				t.Fatalf("%d pods were polled in an interval, want about %d", after-before, perInterval)
			}
		}
		need.Want(t, mostPods, "%d pods have a status, want %d", len(s.look(pods(names...)).Statuses))
	})
}

func TestRemovedPodsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage()
		defer s.end()
		for _, name := range []string{"a", "b", "c"} {
			s.set(name, well(nil))
		}
		s.set("c", well(func(s *status.Status) { s.Name = "shop/invoices" })) // its address was reassigned
		s.look(pods("a", "b", "c"))
		synctest.Wait()
		got := s.look(pods("b"))
		need.That(t, len(got.Statuses) == 1, "got %+v, want the status of b", got)
		polled := len(s.timesPolled("a"))
		time.Sleep(time.Hour)
		if again := len(s.timesPolled("a")); again != polled {
			t.Errorf("a removed pod was polled %d times", again-polled)
		}
		s.set("d", func() (*status.Status, error) {
			time.Sleep(time.Second)
			return well(nil)()
		})
		s.look(pods("b", "d"))
		synctest.Wait()
		s.look(pods("b")) // while d is polled
		s.triggered()
		time.Sleep(5 * time.Second)
		need.Want(t, 0, "the response of a pod that was removed meanwhile triggers a pass", s.triggered())
		time.Sleep(time.Hour)
		need.Want(t, 1, "a pod that was removed while it was polled was polled %d times, want 1", len(s.timesPolled("d")))
		s.Forget(orders)
		polled = len(s.timesPolled("b"))
		s.triggered()
		time.Sleep(time.Hour)
		if again := len(s.timesPolled("b")); again != polled || s.triggered() != 0 {
			t.Errorf("a pod of a removed dispatcher was polled %d times", again-polled)
		}
	})
}

func TestStatusOfAnotherDispatcherDoesNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage()
		defer s.end()
		s.set("a", well(func(s *status.Status) { s.Name = "shop/invoices" }))
		s.look(pods("a"))
		time.Sleep(time.Minute)
		got := s.look(pods("a"))
		need.That(t, len(got.Statuses) == 0 && got.Silent == 1, "got %+v, want no status: the pod's address was reassigned", got)
	})
}

func running(name string) corev1.Pod {
	return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "127.0.0.1"}}
}

func TestStatusIsBoundedAndBrief(t *testing.T) {
	current := status.Status{Name: "shop/orders", Backlog: &status.Backlog{Topics: []status.TopicCounts{{Topic: "a"}}}}
	for range 50 {
		current.PausedTopics = append(current.PausedTopics, status.PausedTopic{Topic: strings.Repeat("x", 300)})
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/well", func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(current) })
	mux.HandleFunc("/ill", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusInternalServerError) })
	mux.HandleFunc("/html", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) })
	mux.HandleFunc("/moved", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/well", http.StatusFound) })
	mux.HandleFunc("/huge", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(append([]byte(`{"name":"shop/orders"}`), bytes.Repeat([]byte(" "), maxBody)...))
	})
	mux.HandleFunc("/header", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X", strings.Repeat("x", 2*maxHeader))
		_ = json.NewEncoder(w).Encode(current)
	})
	server := httptest.NewServer(mux)
	defer server.Close()
	c := NewClient()
	for path, wrong := range map[string]string{
		"/well":    "",
		"/ill":     "500",
		"/html":    "did not respond with a status",
		"/moved":   "302",
		"/huge":    fmt.Sprintf("more than %d bytes", maxBody),
		"/header":  "header",
		"/unknown": "404",
	} {
		got, err := c.get(t.Context(), server.URL+path)
		switch {
		case wrong == "" && (err != nil || got.Name != "shop/orders"):
			t.Errorf("%s: %+v, %v", path, got, err)
		case wrong == "" && (len(got.PausedTopics) != 8 || len(got.PausedTopics[0].Topic) > 100 || got.Backlog.Topics != nil):
			t.Errorf("%s: kept more than a brief status: %+v", path, got)
		case wrong != "" && (err == nil || !strings.Contains(err.Error(), wrong)):
			t.Errorf("%s: %v, want %s", path, err, wrong)
		}
	}
}

func TestRunningPodHasAnAddressAndStays(t *testing.T) {
	pending, leaving, homeless, unready := running("pending"), running("leaving"), running("homeless"), running("unready")
	pending.Status.Phase = corev1.PodPending
	leaving.DeletionTimestamp = &metav1.Time{}
	homeless.Status.PodIP = ""
	unready.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}}
	for _, p := range []corev1.Pod{pending, leaving, homeless, unready} {
		need.Want(t, p.Name == "unready", "%s: %v", Running(&p), p.Name)
	}
}

func TestPodURL(t *testing.T) {
	p := running("six")
	p.Status.PodIP = "fd00::1"
	need.Want(t, "http://[fd00::1]:8080/status?brief", "URL %s", PodURL(&p))
}

// Whoever's pods say much loses the sentences of that namespace alone; what is kept of all is bounded.
func TestStatusesOfAllPodsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage()
		defer s.end()
		s.Observer.most = 1 << 20
		long := strings.Repeat("x", 50<<10)
		says := func(message string) func() (*status.Status, error) {
			return well(func(s *status.Status) {
				s.Source.Message, s.Source.Reason, s.LimitedBy = message, "AuthenticationFailed", "Database"
			})
		}
		looks := func(key types.NamespacedName, of []corev1.Pod) []status.Status {
			s.Observe(key, "shop/orders", of)
			time.Sleep(5 * time.Second)
			synctest.Wait()
			return s.Observe(key, "shop/orders", of).Statuses
		}
		s.set("own", says("correct the password"))
		var flood []types.NamespacedName
		for i := range 3 {
			var names []string
			for j := range perInterval {
				names = append(names, fmt.Sprint("eve", i, "-", j))
				s.set(names[j], says(long))
			}
			key := types.NamespacedName{Namespace: "eve", Name: fmt.Sprint(i)}
			flood = append(flood, key)
			for _, kept := range looks(key, pods(names...)) {
				need.That(t, kept.Source.Reason == "AuthenticationFailed" && kept.LimitedBy == "Database" && kept.Backlog.Pending == 1000, "kept %+v", kept)
			}
		}
		need.That(t, s.size <= s.Observer.most && s.size > s.Observer.most-len(long)-1<<10, "%d bytes are kept, and %d are the most", s.size, s.Observer.most)
		own := looks(orders, pods("own"))
		need.That(t, len(own) == 1 && own[0].Source.Message == "correct the password", "another namespace: %+v", own)
		for _, key := range flood {
			s.Forget(key)
		}
		s.Observe(orders, "shop/orders", nil)
		need.That(t, s.size == 0 && len(s.sizes) == 0, "%d bytes, %v are counted of pods that are gone", s.size, s.sizes)
	})
}
