package main

import "fmt"

// panel is a row of a dashboard's table.
type panel struct {
	title, unit string
	kind        string // stat, timeseries, state-timeline or bargauge
	width       int    // of 24
	queries     []query
	why         string
	states      map[int]state // what values mean, of a stat or a state-timeline
	bad         bool          // whether anything above 0 is
}

// query is one in PromQL with what its series are called. In it OF stands for the dispatchers of the dashboard, and RATE for the
// range of a rate.
type query struct{ expr, legend string }

// state is a word and its colour.
type state struct{ word, colour string }

// dashboard is a table of panels.
type dashboard struct {
	name, title, uid, description string
	of                            string // what OF is
	variables                     []variable
	panels                        []panel
}

// variable is one that a person chooses, of the values of a label.
type variable struct {
	name, label, query string
	several            bool
}

var lateness = map[int]state{0: {"On time", "green"}, 1: {"Late", "red"}}

// limits are what outbox_limited_by can say.
var limits = map[int]state{
	1: {"Idle", "#6e7f91"}, 2: {"Concurrency", "blue"}, 3: {"Database", "orange"}, 4: {"Rate", "purple"}, 5: {"Destination", "red"},
	6: {"Order", "#c4a000"}, 7: {"Consumer", "#ff9da6"},
}

// lateThen are lateness next to other states.
var lateThen = map[int]state{21: lateness[0], 22: lateness[1]}

// colours are of series whose meaning is the same on each dashboard.
var colours = map[string]string{"delivered": "green", "confirmed": "green", "failed": "orange", "waits for a retry": "orange", "dead": "red", "objective": "red"}

// breakers are the states of outbox_breaker_state, and of a pause.
var breakers = map[int]state{11: {"Closed", "green"}, 12: {"Unreachable", "red"}, 13: {"Refusing", "orange"}, 14: {"Paused", "#6e7f91"}}

// numbered is a metric with a series for each state, of which one is 1, as the number of that one.
func numbered(metric, label string, states map[int]state) (expr string) {
	for number := range 20 {
		if s, is := states[number]; is {
			if expr != "" {
				expr += " or "
			}
			expr += fmt.Sprintf(`%d * %s{%s=%q, OF}`, number, metric, label, s.word)
		}
	}
	return expr
}

// quantile is one of a histogram: by native buckets where Prometheus keeps them, else by classic ones.
func quantile(q, histogram, by string) string {
	sum, classic := "sum", "sum by (le)"
	if by != "" {
		sum, classic = "sum by ("+by+")", "sum by (le, "+by+")"
	}
	return fmt.Sprintf("histogram_quantile(%s, %s (rate(%s{OF}[RATE]))) or histogram_quantile(%s, %s (rate(%s_bucket{OF}[RATE])))", q, sum, histogram, q, classic, histogram)
}

var fleet = dashboard{
	name: "fleet", title: "Outbox / Fleet", uid: "outbox-fleet", description: "All dispatchers: which is late, what waits, and what limits each.",
	of: `namespace=~"$namespace"`, variables: []variable{{"namespace", "Namespace", "label_values(outbox_build_info, namespace)", true}},
	panels: []panel{
		{title: "Dispatchers", unit: "short", kind: "stat", width: 4, queries: []query{{`count(count by (namespace, dispatcher) (outbox_build_info{OF}))`, ""}},
			why: "Dispatchers with at least one process that is scraped."},
		{title: "Late now", unit: "short", kind: "stat", width: 4, bad: true, queries: []query{{`sum(outbox:late{OF}) or vector(0)`, ""}},
			why: "Dispatchers whose oldest event has waited for longer than objective.freshness, or that have counted nothing for a minute."},
		{title: "Pending", unit: "short", kind: "stat", width: 4, queries: []query{{`sum(max by (namespace, dispatcher, topic) (outbox_pending_events_count{OF}))`, ""}},
			why: "Events that wait: due now, or for a retry. An estimate above 10,000 a topic."},
		{title: "Dead", unit: "short", kind: "stat", width: 4, bad: true, queries: []query{{`sum(max by (namespace, dispatcher, topic) (outbox_dlq_events_count{OF}))`, ""}},
			why: "Events that were given up, and wait for a person to replay or discard them."},
		{title: "Delivered", unit: "eps", kind: "stat", width: 4, queries: []query{{`sum(rate(outbox_events_delivered_total{OF}[RATE]))`, ""}},
			why: "Events marked delivered, a second."},
		{title: "Failed", unit: "eps", kind: "stat", width: 4, queries: []query{{`sum(rate(outbox_events_failed_total{OF}[RATE]))`, ""}},
			why: "Deliveries that failed, a second. They are tried again."},
		{title: "Late", unit: "none", kind: "state-timeline", width: 12, states: lateness, queries: []query{{`max by (dispatcher) (outbox:late{OF})`, "{{dispatcher}}"}},
			why: "When each dispatcher was late. A gap: it was paused, had no pods, or was not scraped."},
		{title: "What limits each", unit: "none", kind: "state-timeline", width: 12, states: limits, queries: []query{{`max by (dispatcher) (` + numbered("outbox_limited_by", "by", limits) + `)`, "{{dispatcher}}"}},
			why: "What keeps each dispatcher from delivering more. Of several pods, the one that is listed last in the legend."},
		{title: "Budget left, of 30 days", unit: "percentunit", kind: "bargauge", width: 12, queries: []query{{`bottomk(10, 1 - max by (dispatcher) (outbox:late:ratio30d{OF}) / on (dispatcher) max by (dispatcher) (outbox:budget{OF}))`, "{{dispatcher}}"}},
			why: "The part of the late time that objective.target allows in 30 days which is left. The ten with the least. Below 0 the objective is missed."},
		{title: "Oldest event", unit: "s", kind: "timeseries", width: 12, queries: []query{{`topk(10, max by (dispatcher) (outbox_oldest_pending_age_seconds{OF}))`, "{{dispatcher}}"}},
			why: "For how long the oldest event that is not delivered has waited, since it was due first. The ten longest."},
		{title: "Pending, by dispatcher", unit: "short", kind: "timeseries", width: 8, queries: []query{{`topk(10, sum by (dispatcher) (max by (dispatcher, topic) (outbox_pending_events_count{OF})))`, "{{dispatcher}}"}},
			why: "Whose backlog grows. The ten largest."},
		{title: "Delivered, by dispatcher", unit: "eps", kind: "timeseries", width: 8, queries: []query{{`topk(10, sum by (dispatcher) (rate(outbox_events_delivered_total{OF}[RATE])))`, "{{dispatcher}}"}},
			why: "Who delivers how much. The ten fastest."},
		{title: "Processes, by version", unit: "short", kind: "timeseries", width: 8, queries: []query{{`count by (version) (outbox_build_info{OF})`, "{{version}}"}},
			why: "How far an upgrade is."},
	},
}

var one = dashboard{
	name: "dispatcher", title: "Outbox / Dispatcher", uid: "outbox-dispatcher", description: "One dispatcher: is it delivering, how fast, and what is in its way.",
	of: `dispatcher="$dispatcher"`, variables: []variable{{"dispatcher", "Dispatcher", "label_values(outbox_build_info, dispatcher)", false}},
	panels: []panel{
		{title: "Now", unit: "none", kind: "stat", width: 4, states: lateness, queries: []query{{`max(outbox:late{OF})`, ""}},
			why: "Late: its oldest event has waited for longer than objective.freshness, or nothing was counted for a minute."},
		{title: "Oldest event", unit: "s", kind: "stat", width: 4, queries: []query{{`max(outbox_oldest_pending_age_seconds{OF})`, ""}},
			why: "For how long the oldest event that is not delivered has waited, since it was due first."},
		{title: "Pending", unit: "short", kind: "stat", width: 4, queries: []query{{`sum(max by (topic) (outbox_pending_events_count{OF}))`, ""}},
			why: "Events that wait: due now, or for a retry. An estimate above 10,000 a topic."},
		{title: "Dead", unit: "short", kind: "stat", width: 4, bad: true, queries: []query{{`sum(max by (topic) (outbox_dlq_events_count{OF}))`, ""}},
			why: "Events that were given up, and wait for a person to replay or discard them."},
		{title: "Delivered", unit: "eps", kind: "stat", width: 4, queries: []query{{`sum(rate(outbox_events_delivered_total{OF}[RATE]))`, ""}},
			why: "Events marked delivered, a second."},
		{title: "Budget left", unit: "percentunit", kind: "stat", width: 4, queries: []query{{`1 - max(outbox:late:ratio30d{OF}) / max(outbox:budget{OF})`, ""}},
			why: "The part of the late time that objective.target allows in 30 days which is left. Below 0 the objective is missed."},
		{title: "Oldest event, by topic", unit: "s", kind: "timeseries", width: 12, queries: []query{
			{`max by (topic) (outbox_oldest_pending_age_seconds{OF})`, "{{topic}}"}, {`max(outbox_objective_freshness_seconds{OF})`, "objective"}},
			why: "Above the objective the dispatcher is late."},
		{title: "Backlog", unit: "short", kind: "timeseries", width: 12, queries: []query{
			{`sum(max by (topic) (outbox_pending_events_count{OF} - outbox_retrying_events))`, "due"}, {`sum(max by (topic) (outbox_retrying_events{OF}))`, "waits for a retry"},
			{`sum(max by (topic) (outbox_processing_events{OF}))`, "in delivery"}, {`sum(max by (topic) (outbox_dlq_events_count{OF}))`, "dead"}},
			why: "Where the events are that are not delivered."},
		{title: "State", unit: "none", kind: "state-timeline", width: 24, states: merged(lateThen, limits, breakers), queries: []query{
			{`21 + max(outbox:late{OF})`, "Objective"},
			{`max(14 * (outbox_paused{OF} == 1) or ` + numbered("outbox_breaker_state", "state", map[int]state{11: breakers[11], 12: breakers[12], 13: breakers[13]}) + `)`, "Destination"},
			{`max(` + numbered("outbox_limited_by", "by", limits) + `)`, "Limited by"}},
			why: "When it was late, how the destination was, and what kept the dispatcher from delivering more."},
		{title: "Outcomes", unit: "eps", kind: "timeseries", width: 12, queries: []query{
			{`sum(rate(outbox_events_delivered_total{OF}[RATE]))`, "delivered"}, {`sum(rate(outbox_events_failed_total{OF}[RATE]))`, "failed"}, {`sum(rate(outbox_events_dlq_total{OF}[RATE]))`, "dead"}},
			why: "How deliveries ended, a second."},
		{title: "From creation to delivery", unit: "s", kind: "timeseries", width: 12, queries: []query{
			{quantile("0.5", "outbox_end_to_end_latency_seconds", ""), "p50"}, {quantile("0.99", "outbox_end_to_end_latency_seconds", ""), "p99"}, {`max(outbox_oldest_pending_age_seconds{OF})`, "oldest that waits"}},
			why: "How long delivered events took. In an outage none is delivered, and the oldest one that waits says how long it will have been."},
		{title: "Dead, by reason", unit: "short", kind: "timeseries", width: 8, queries: []query{{`sum by (reason) (increase(outbox_events_dlq_total{OF}[RATE]))`, "{{reason}}"}},
			why: "Events that became dead. `kubectl outbox dead groups` has their causes."},
		{title: "Duration of a delivery, p99", unit: "s", kind: "timeseries", width: 8, queries: []query{{quantile("0.99", "outbox_delivery_duration_seconds", "outcome"), "{{outcome}}"}},
			why: "How long the destination takes to respond."},
		{title: "In flight, by pod", unit: "short", kind: "timeseries", width: 8, queries: []query{{`sum by (instance) (outbox_in_flight_events{OF})`, "{{instance}}"}},
			why: "Events that each process has claimed and not yet written back."},
	},
}
