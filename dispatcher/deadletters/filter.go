package deadletters

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// Bounds of a [Filter].
const (
	// MaxIDs is the most ids of a filter.
	MaxIDs = 1000
	// maxText is the most bytes of one of its texts: what enqueue takes of the longest, 1024 characters, twice.
	maxText = 8192
)

// Filter chooses dead letters. A dead letter matches when it matches every member that is set. The zero filter
// matches every open one: each that was not replayed, discarded or expired.
type Filter struct {
	// IDs are ids of events (UUIDs) or of dead letters (numbers), at most 1000. A dead letter matches one of them.
	IDs []string `json:"ids,omitempty"`
	// Topic is the event's topic.
	Topic string `json:"topic,omitempty"`
	// Type is the event's type.
	Type string `json:"type,omitempty"`
	// Aggregate is the id of the thing that the event is about, or its type and id as TYPE/ID.
	Aggregate string `json:"aggregate,omitempty"`
	// Tenant is the event's tenant, a UUID.
	Tenant string `json:"tenant,omitempty"`
	// Reason is why the event is dead: max_retries_exceeded, poison_message, schema_validation_failed,
	// processing_timeout or permanent_failure.
	Reason string `json:"reason,omitempty"`
	// Group is the fingerprint of a group: 8 hex digits.
	Group string `json:"group,omitempty"`
	// Operation is the id of the last replay, discard or reopen that claimed the dead letter.
	Operation string `json:"operation,omitempty"`
	// ErrorContains is a part of the last error, compared without regard to case.
	ErrorContains string `json:"errorContains,omitempty"`
	// Since is the earliest time at which the event became dead, and Until the time before which it did.
	Since time.Time `json:"since,omitzero"`
	Until time.Time `json:"until,omitzero"`
	// Resolved chooses the dead letters that were resolved, instead of the open ones.
	Resolved bool `json:"resolved,omitempty"`
}

// Reasons are the reasons for which an event becomes dead (CONTRACT C-40).
var Reasons = []dispatcher.DeadReason{
	dispatcher.ReasonMaxRetriesExceeded, dispatcher.ReasonPoisonMessage, dispatcher.ReasonSchemaValidationFailed,
	dispatcher.ReasonProcessingTimeout, dispatcher.ReasonPermanentFailure,
}

var fingerprint = regexp.MustCompile(`^[0-9a-f]{8}$`)

// Empty reports whether the filter chooses nothing in particular: it matches every open dead letter, or every
// resolved one.
func (f Filter) Empty() bool {
	return len(f.IDs) == 0 && f.Topic+f.Type+f.Aggregate+f.Tenant+f.Reason+f.Group+f.Operation+f.ErrorContains == "" &&
		f.Since.IsZero() && f.Until.IsZero()
}

// Indexed reports whether the index of the open dead letters has all that the filter looks at: topic, group and time.
func (f Filter) Indexed() bool {
	return len(f.IDs) == 0 && f.Type+f.Aggregate+f.Tenant+f.Reason+f.Operation+f.ErrorContains == ""
}

// Validate fails when the filter is not valid. The error has each fault with its remedy.
func (f Filter) Validate() error {
	var errs []error
	refuse := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if len(f.IDs) > MaxIDs {
		refuse("ids: there are %d; give %d at most, or filter by group", len(f.IDs), MaxIDs)
	}
	for _, id := range f.IDs {
		if _, _, err := parseID(id); err != nil {
			refuse("ids: %w", err)
			break
		}
	}
	for _, text := range []struct{ name, value string }{
		{"topic", f.Topic}, {"type", f.Type}, {"aggregate", f.Aggregate}, {"errorContains", f.ErrorContains},
	} {
		if len(text.value) > maxText || strings.ContainsRune(text.value, 0) {
			refuse("%s: it has more than %d bytes, or a NUL; shorten it", text.name, maxText)
		}
	}
	for _, id := range []struct{ name, value string }{{"tenant", f.Tenant}, {"operation", f.Operation}} {
		if _, err := uuid.Parse(id.value); id.value != "" && (err != nil || len(id.value) != 36) {
			refuse("%s: %s is not a UUID; correct it", id.name, clip(id.value))
		}
	}
	if f.Reason != "" && !slices.Contains(Reasons, dispatcher.DeadReason(f.Reason)) {
		refuse("reason: %s is unknown; choose one of %s", clip(f.Reason), strings.Join(names(Reasons), ", "))
	}
	if f.Group != "" && !fingerprint.MatchString(f.Group) {
		refuse("group: %s is not a group; give its 8 hex digits, as `dead groups` lists them", clip(f.Group))
	}
	if !f.Since.IsZero() && !f.Until.IsZero() && !f.Since.Before(f.Until) {
		refuse("since: %s is not before until, %s; exchange them", f.Since.Format(time.RFC3339), f.Until.Format(time.RFC3339))
	}
	return errors.Join(errs...)
}

// Open fails for a filter of resolved dead letters, where only open ones are counted.
func (f Filter) Open() error {
	if f.Resolved {
		return errors.New("resolved: groups are of open dead letters; leave it out, or list the dead letters")
	}
	return nil
}

// Where returns the filter as an SQL condition on the table outbox_dead_letters with the alias l, of one
// namespace and some topics (none means all), and the arguments that it needs. They come after args, the
// arguments that the statement has already. The filter must be valid.
func (f Filter) Where(namespace string, topics []string, args ...any) (condition string, all []any) {
	w := where{args: slices.Clone(args)}
	if f.Resolved {
		w.terms = append(w.terms, "l.resolution is not null")
	} else {
		w.terms = append(w.terms, "l.resolution is null")
	}
	w.add("l.namespace = $%d::text", namespace)
	if len(topics) > 0 {
		w.add("l.topic = any ($%d::text[])", topics)
	}
	if len(f.IDs) > 0 {
		events, deadLetters := split(f.IDs)
		w.add("(l.event_id = any ($%d::uuid[]) or l.id = any ($%d::bigint[]))", events, deadLetters)
	}
	for _, text := range []struct{ term, value string }{
		{"l.topic = $%d::text", f.Topic},
		{"l.event_type = $%d::text", f.Type},
		{"$%d::text in (l.aggregate_id, l.aggregate_type || '/' || l.aggregate_id)", f.Aggregate},
		{"l.tenant_id = $%d::text::uuid", f.Tenant},
		{"l.reason = $%d::text", f.Reason},
		{"l.fingerprint = $%d::text", f.Group},
		{"l.replay_id = $%d::text::uuid", f.Operation},
		{"strpos(lower(l.error), lower($%d::text)) > 0", f.ErrorContains},
	} {
		if text.value != "" {
			w.add(text.term, text.value)
		}
	}
	if !f.Since.IsZero() {
		w.add("l.dead_at >= $%d::timestamptz", f.Since)
	}
	if !f.Until.IsZero() {
		w.add("l.dead_at < $%d::timestamptz", f.Until)
	}
	return strings.Join(w.terms, " and "), w.args
}

// where collects the terms of a condition.
type where struct {
	terms []string
	args  []any
}

// add adds a term, in which the values stand one after the other.
func (w *where) add(term string, values ...any) {
	var numbers []any
	for _, value := range values {
		w.args = append(w.args, value)
		numbers = append(numbers, len(w.args))
	}
	w.terms = append(w.terms, fmt.Sprintf(term, numbers...))
}

// split parts valid ids into those of events and those of dead letters.
func split(ids []string) (events []string, deadLetters []int64) {
	events, deadLetters = []string{}, []int64{}
	for _, id := range ids {
		switch event, deadLetter, err := parseID(id); {
		case err != nil:
		case deadLetter != 0:
			deadLetters = append(deadLetters, deadLetter)
		default:
			events = append(events, event.String())
		}
	}
	return events, deadLetters
}

// parseID returns the event's id that a text is, or else the dead letter's.
func parseID(id string) (event uuid.UUID, deadLetter int64, err error) {
	if deadLetter, err = strconv.ParseInt(id, 10, 64); err == nil && deadLetter > 0 {
		return event, deadLetter, nil
	}
	if event, err = uuid.Parse(id); err == nil && len(id) == 36 {
		return event, 0, nil
	}
	return event, 0, fmt.Errorf("%s is neither an event's id, a UUID, nor a dead letter's, a number; `dead list` has both", clip(id))
}

// clip quotes user input, shortened to what fits into an error.
func clip(text string) string {
	if len(text) > 60 {
		text = strings.ToValidUTF8(text[:60], "") + "…"
	}
	return strconv.Quote(text)
}

func names[T ~string](values []T) (out []string) {
	for _, v := range values {
		out = append(out, string(v))
	}
	return out
}

// Values writes a request as the query of a URL. The names are those of the JSON.
func (r ListRequest) Values() url.Values {
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

// ParseRequest reads what Values wrote. Its error says everything that is wrong.
func ParseRequest(v url.Values) (r ListRequest, err error) {
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
