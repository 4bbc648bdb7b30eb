package deadletters

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"time"
)

// values writes a request as the query of a URL. The names are those of the JSON.
func (r ListRequest) values() url.Values {
	v := url.Values{}
	for _, id := range r.IDs {
		v.Add("ids", id)
	}
	for name, value := range map[string]string{
		"topic": r.Topic, "type": r.Type, "aggregate": r.Aggregate, "tenant": r.Tenant, "reason": r.Reason,
		"group": r.Group, "operation": r.Operation, "errorContains": r.ErrorContains, "since": stamp(r.Since), "until": stamp(r.Until),
	} {
		if value != "" {
			v.Set(name, value)
		}
	}
	if r.Resolved {
		v.Set("resolved", "true")
	}
	if r.Limit != 0 {
		v.Set("limit", strconv.Itoa(r.Limit))
	}
	if r.After != 0 {
		v.Set("after", strconv.FormatInt(r.After, 10))
	}
	return v
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Format(time.RFC3339Nano)
}

// parseRequest reads what values wrote. Its error says everything that is wrong.
func parseRequest(v url.Values) (r ListRequest, err error) {
	var errs []error
	parse := func(name string, do func(string) error) {
		if text := v.Get(name); text != "" {
			if err := do(text); err != nil {
				errs = append(errs, fmt.Errorf("%s: %s cannot be read; correct it", name, clip(text)))
			}
		}
	}
	r.Filter = Filter{
		IDs: v["ids"], Topic: v.Get("topic"), Type: v.Get("type"), Aggregate: v.Get("aggregate"), Tenant: v.Get("tenant"),
		Reason: v.Get("reason"), Group: v.Get("group"), Operation: v.Get("operation"), ErrorContains: v.Get("errorContains"),
	}
	parse("since", func(text string) (err error) { r.Since, err = time.Parse(time.RFC3339, text); return err })
	parse("until", func(text string) (err error) { r.Until, err = time.Parse(time.RFC3339, text); return err })
	parse("resolved", func(text string) (err error) { r.Resolved, err = strconv.ParseBool(text); return err })
	parse("limit", func(text string) (err error) { r.Limit, err = strconv.Atoi(text); return err })
	parse("after", func(text string) (err error) { r.After, err = strconv.ParseInt(text, 10, 64); return err })
	known := map[string]bool{"ids": true, "topic": true, "type": true, "aggregate": true, "tenant": true, "reason": true, "group": true,
		"operation": true, "errorContains": true, "since": true, "until": true, "resolved": true, "limit": true, "after": true}
	for name := range v {
		if !known[name] {
			errs = append(errs, fmt.Errorf("%s is unknown; correct the name, or leave it out", clip(name)))
		}
	}
	errs = append(errs, r.Validate())
	return r, errors.Join(errs...)
}
