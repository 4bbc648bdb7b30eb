package httpsink

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
)

// target is where a request goes.
type target struct {
	url *url.URL
	// name is the URL as errors show it: without query (CONTRACT C-73).
	name string
}

func newTarget(u *url.URL) target {
	return target{u, (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath}).String()}
}

// to says where the event goes: to url, or where its route leads from there.
func (s *sink) to(e *dispatcher.Event) (target, error) {
	if s.route == nil {
		return s.base, nil
	}
	text, err := s.route(e)
	if err != nil {
		return target{}, reason.Routed(fmt.Errorf("http sink: %w", err))
	}
	u, err := resolve(s.base.url, text)
	if err != nil {
		return target{}, reason.Routed(fmt.Errorf("http sink: the route of event %s, topic %q, %w", e.ID, e.Topic, err))
	}
	return newTarget(u), nil
}

// resolve follows a route from base, as a link in a page (RFC 3986, section 5). A route may be made
// from what is in an event, so it never leaves base's host, and never climbs up. Base's query is kept,
// unless the route has one. The route is not quoted: its query may be secret.
func resolve(base *url.URL, route string) (*url.URL, error) {
	ref, err := url.Parse(route)
	if err != nil {
		return nil, errors.New("is not a path; make it one such as orders/placed, and escape what it takes from events")
	}
	if slices.ContainsFunc(strings.Split(ref.Path, "/"), func(segment string) bool { return segment == "." || segment == ".." }) {
		return nil, errors.New("has a segment . or ..; leave those out, and escape what it takes from events")
	}
	u := base.ResolveReference(ref)
	if u.Scheme != base.Scheme || u.Host != base.Host || u.User != nil || u.Opaque != "" {
		return nil, fmt.Errorf("leads to another host than %s://%s; make it a path, or use a dispatcher of its own for the other host", base.Scheme, base.Host)
	}
	if ref.RawQuery == "" {
		u.RawQuery = base.RawQuery
	}
	u.Fragment, u.RawFragment = "", ""
	return u, nil
}

// group is the part of a batch that goes to one target. at are its events' places in the batch.
type group struct {
	to     target
	events []*dispatcher.Event
	at     []int
}

// groups splits a batch by target. An event without one has its error in errs.
func (s *sink) groups(batch []*dispatcher.Event, errs []error) (all []*group) {
	byURL := map[string]*group{}
	for i, e := range batch {
		to, err := s.to(e)
		if err != nil {
			errs[i] = err
			continue
		}
		key := to.url.String()
		p, known := byURL[key]
		if !known {
			p = &group{to: to}
			byURL[key] = p
			all = append(all, p)
		}
		p.events, p.at = append(p.events, e), append(p.at, i)
	}
	return all
}
