package main

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// A process claims soon after it was started, with everything linked in and the schema compared first.
// The target is a second on a machine with nothing else to do; the test says how long it took, and
// fails at ten times that.
func TestFirstEventIsSentSoonAfterStart(t *testing.T) {
	o := installed(t)
	o.enqueue(t, 1)
	arrived := make(chan time.Time, 1)
	consumer := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { arrived <- time.Now() }))
	defer consumer.Close()
	file := o.file(t, o.dispatcher, dispatching("{http: {url: '"+consumer.URL+"'}}"))
	began := time.Now()
	p := start(t, file)
	claimedAndSent := (<-arrived).Sub(began)
	if code := p.stop(t); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	used := p.cmd.ProcessState.UserTime() + p.cmd.ProcessState.SystemTime()
	t.Logf("from the start of the process to the first claim and its delivery: %s; CPU time of its whole life: %s", claimedAndSent.Round(time.Millisecond), used.Round(time.Millisecond))
	if claimedAndSent > 10*time.Second {
		t.Errorf("the first event was sent after %s", claimedAndSent)
	}
}
