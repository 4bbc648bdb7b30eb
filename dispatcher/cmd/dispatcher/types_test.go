package main

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// Types that get a verified consumer reach a running process. Events that wait for one are counted, and leave destination
// and process healthy. CONTRACT: C-82
func TestVerifiedTypesFileGatesEvents(t *testing.T) {
	t.Parallel()
	o := installed(t)
	consumer := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer consumer.Close()
	m := mounted(t.TempDir())
	say := func(types string) { m.set(t, map[string]string{"types": types}) }
	yaml := dispatching("{http: {url: '"+consumer.URL+"'}}") + "verifiedTypesFile: " + m.file("types") + "\n"
	file := o.file(t, o.dispatcher, yaml)
	o.enqueue(t, 20)
	run(t, "", "check", "-f", file).ended(t, 1, "FAIL verified types: verifiedTypesFile: ")
	p := start(t, file)
	p.ready(t)
	gated := func() bool {
		s := p.status(t)
		return len(s.Gated) == 1 && s.GatedTopics == 1 && s.Gated[0].Topic == "orders" && s.Gated[0].Waiting == 20 && s.Sink.State == "Reachable" && s.AllTopicsPaused
	}
	await(t, "without a file nothing is delivered", func() bool { return gated() && len(p.status(t).FileProblems) == 1 })
	say("other.type\n")
	await(t, "nor with one that lists other types", func() bool { return gated() && p.status(t).FileProblems == nil })
	run(t, "", "check", "-f", file).ended(t, 0, "ok   verified types: 1 are listed")
	if n := o.count(t, "status = 'pending' and attempts = 0"); n < 19 { // one may be looked at
		t.Errorf("%d of 20 wait without an attempt", n)
	}
	p.ready(t)
	say("other.type\n*")
	await(t, "all is delivered", func() bool { return o.count(t, "status = 'delivered' and attempts = 1") == 20 })
	await(t, "no topic is paused", func() bool { return p.status(t).Gated == nil })
	if code := p.stop(t); code != 0 {
		t.Errorf("it ended with %d", code)
	}
}
