package outboxdispatcher

import (
	"errors"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/outbox-operator/outbox-operator/api/status"
	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/kstatus"
	"github.com/outbox-operator/outbox-operator/controllers/internal/observe"
)

// The newest run that ended is reported, and one that removed nothing only after some minutes.
// CONTRACT: C-3, C-60
func TestSetRetention(t *testing.T) {
	var s api.OutboxDispatcherStatus
	run := func(at time.Duration, delivered int64) status.Status {
		return status.Status{Retention: &status.Retention{LastRun: ptr.To(time.Unix(1000, 7).Add(at)), NextRun: ptr.To(time.Unix(2000, 7).Add(at)), Removed: status.Removed{Delivered: delivered}}}
	}
	setRetention(&s, []status.Status{{}, {Retention: &status.Retention{Running: true}}})
	if s.Retention != nil {
		t.Errorf("before the first run it says %+v", s.Retention)
	}
	setRetention(&s, []status.Status{run(0, 5), run(time.Minute, 7), run(-time.Minute, 3)})
	if s.Retention == nil || s.Retention.Delivered != 7 || s.Retention.LastRun.Unix() != 1060 || s.Retention.NextRun.Unix() != 2060 {
		t.Errorf("it says %+v, want the newest run", s.Retention)
	}
	for after, want := range map[time.Duration]int64{-time.Hour: 1060, staleAfter - time.Second: 1060, staleAfter: 1060 + int64(staleAfter.Seconds())} {
		idle := *s.DeepCopy()
		if setRetention(&idle, []status.Status{run(time.Minute+after, 7)}); idle.Retention.LastRun.Unix() != want {
			t.Errorf("an idle run %s later: it says %+v", after, idle.Retention)
		}
	}
	setRetention(&s, nil)
	if setRetention(&s, []status.Status{run(2*time.Minute, 8)}); s.Retention.Delivered != 8 {
		t.Errorf("after a run that removed something it says %+v", s.Retention)
	}
	later := run(3*time.Minute, 8)
	for ahead, want := range map[time.Duration]int64{time.Minute: 1240, time.Hour: 1180} {
		s.Retention.LastRun = ptr.To(metav1.NewTime(time.Unix(1180, 0).Add(ahead)))
		later.Backlog = &status.Backlog{ObservedAt: time.Unix(1180, 0)}
		if setRetention(&s, []status.Status{later}); s.Retention.LastRun.Unix() != want {
			t.Errorf("a run that ended with the clock ahead by %s: it says %+v", ahead, s.Retention)
		}
	}
}

// The version is the highest that pods report now: after a restore it is a lower one. It stays when none reports one.
func TestSetSchemaVersion(t *testing.T) {
	var s api.OutboxDispatcherStatus
	for _, test := range []struct {
		reported []int
		want     int64
	}{{[]int{5, 6}, 6}, {[]int{0, 5}, 5}, {[]int{0}, 5}, {nil, 5}} {
		var pods []status.Status
		for _, version := range test.reported {
			pods = append(pods, status.Status{Schema: status.Schema{Version: version}})
		}
		if setSchemaVersion(&s, pods); *s.SchemaVersion != test.want {
			t.Errorf("pods report %d, and the version is %d, want %d", test.reported, *s.SchemaVersion, test.want)
		}
	}
}

func TestSetCounts(t *testing.T) {
	var s api.OutboxDispatcherStatus
	a, b := podStatus(), podStatus()
	a.Backlog = &status.Backlog{ObservedAt: time.Unix(10, 0), Counts: status.Counts{Pending: 1, Dead: 2}}
	b.Backlog = &status.Backlog{ObservedAt: time.Unix(20, 5), Counts: status.Counts{Pending: 3, Estimated: true, OldestPending: ptr.To(time.Unix(7, 9))}}
	setCounts(&s, observe.NewestBacklog([]status.Status{b, a}), false)
	if *s.Pending != 3 || *s.Dead != 0 || !s.Estimated || s.OldestPending.Unix() != 7 || s.ObservedTime.Unix() != 20 {
		t.Errorf("counts %+v, want those of the newest", s)
	}
	before := *s.DeepCopy()
	b.Backlog.ObservedAt = time.Unix(30, 0)
	setCounts(&s, b.Backlog, false)
	setCounts(&s, nil, false)
	if !equal(before, s) {
		t.Errorf("counts %+v, want them unchanged: %+v", s, before)
	}
	for after, want := range map[time.Duration]time.Duration{staleAfter - time.Second: 0, staleAfter: staleAfter} {
		late := s
		b.Backlog.ObservedAt = time.Unix(20, 0).Add(after)
		if setCounts(&late, b.Backlog, false); late.ObservedTime.Sub(s.ObservedTime.Time) != want {
			t.Errorf("%s later: observed at %s, was %s", after, late.ObservedTime, s.ObservedTime)
		}
	}
	b.Backlog.ObservedAt = time.Unix(30, 0)
	b.Backlog.OldestPending = nil
	setCounts(&s, b.Backlog, false)
	if s.OldestPending != nil || s.ObservedTime.Unix() != 30 {
		t.Errorf("counts %+v, want no oldest, as of the newest time", s)
	}
	b.Backlog.BlockedKeys = 4
	if setCounts(&s, b.Backlog, false); s.BlockedKeys != nil {
		t.Errorf("blocked keys %d of a dispatcher that blocks none", *s.BlockedKeys)
	}
	if setCounts(&s, b.Backlog, true); s.BlockedKeys == nil || *s.BlockedKeys != 4 {
		t.Errorf("blocked keys %v, want 4", s.BlockedKeys)
	}
	if setCounts(&s, nil, true); s.BlockedKeys == nil {
		t.Error("the count was removed when no pod responded")
	}
	if setCounts(&s, nil, false); s.BlockedKeys != nil {
		t.Error("the count stayed when keys block no more")
	}
}

// The pods of two revisions may count other rows: those of the newest are believed, whichever counted last, once they have.
func TestCountsOfTheNewestRevision(t *testing.T) {
	o := running()
	rolling(func(s *status.Status) {
		s.Backlog = &status.Backlog{ObservedAt: time.Unix(5, 0), Counts: status.Counts{Pending: 5, Dead: 7}}
		s.Data = &status.Data{ObservedAt: time.Unix(5, 0), OrphanTopics: []status.OrphanTopic{{Namespace: o.obd.Spec.Namespace, Topic: "x", Unserved: 1}}}
	})(&o)
	o.statuses[0].Backlog.ObservedAt, o.statuses[0].Data.ObservedAt = time.Unix(9, 0), time.Unix(9, 0)
	check := func(when string, pending, dead int64) {
		t.Helper()
		var s api.OutboxDispatcherStatus
		setStatus(&s, o)
		present, healthy := meta.IsStatusConditionTrue(s.Conditions, api.DeadLettersPresentCondition), meta.IsStatusConditionTrue(s.Conditions, api.DataHealthyCondition)
		if *s.Pending != pending || *s.Dead != dead || present != (dead > 0) || healthy != (dead == 0) || sample(o, time.Now()).Pending != pending {
			t.Errorf("%s: %d pending, %d dead, DeadLettersPresent %v, DataHealthy %v", when, *s.Pending, *s.Dead, present, healthy)
		}
	}
	check("the newest revision has counted", 5, 7)
	o.statuses[2].Backlog, o.statuses[2].Data = nil, nil
	check("it has not", 300, 0)
}

func TestSetFailure(t *testing.T) {
	var s api.OutboxDispatcherStatus
	kstatus.SetConditions(&s.Conditions, 1, conditions(well()))
	before := meta.FindStatusCondition(s.Conditions, api.ReadyCondition).DeepCopy()
	kstatus.SetFailure(&s.Conditions, 2, api.ReadyCondition, errors.New("the server is down"))
	if got := meta.FindStatusCondition(s.Conditions, api.ReadyCondition); *got != *before {
		t.Errorf("Ready is %+v, want %+v: the operator's trouble is not the object's", got, before)
	}
	if got := meta.FindStatusCondition(s.Conditions, api.ReconcilingCondition); got == nil || !strings.Contains(got.Message, "the server is down") {
		t.Errorf("Reconciling is %+v, want the failure", got)
	}
	kstatus.SetConditions(&s.Conditions, 2, conditions(well()))
	if got := meta.FindStatusCondition(s.Conditions, api.ReconcilingCondition); got != nil {
		t.Errorf("Reconciling is %+v after a pass that went well, want none", got)
	}
	var fresh api.OutboxDispatcherStatus
	kstatus.SetFailure(&fresh.Conditions, 1, api.ReadyCondition, errors.New("the server is down"))
	if got := meta.FindStatusCondition(fresh.Conditions, api.ReadyCondition); got == nil || got.Status != metav1.ConditionUnknown {
		t.Errorf("Ready is %+v, want Unknown: it is always there", got)
	}
}
