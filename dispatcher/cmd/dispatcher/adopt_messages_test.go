package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
)

// received is a request of the http sink.
type received struct {
	header http.Header
	body   string
}

// consumerOf takes requests.
func consumerOf(t *testing.T) (url string, requests <-chan received) {
	t.Helper()
	all := make(chan received, 100)
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		all <- received{r.Header, string(body)}
	}))
	t.Cleanup(s.Close)
	return s.URL, all
}

// adoptTable makes a table of the service's, and takes it over. The rows are as inserted before the cut-over.
func (o *outbox) adoptTable(t *testing.T, ddl, rows string, shadow ...string) (file string) {
	t.Helper()
	file = o.file(t, o.owner, "")
	o.exec(t, fmt.Sprintf("grant create, usage on schema public to %[1]s; grant %[1]s to %[2]s", o.producer, o.owner))
	o.exec(t, asRole(o.producer, ddl+";"+rows))
	run(t, "", append([]string{"adopt", "shadow", "-f", file}, shadow...)...).ok(t)
	run(t, "", "adopt", "cutover", "-f", file).ok(t)
	return file
}

const storageTable = `create table storage_outbox (
	outbox_id varchar(32) primary key, aggregate_id varchar(255) not null, aggregate_type varchar(50) not null, event_type varchar(100) not null,
	event_payload jsonb not null, event_metadata jsonb not null default '{}', sequence_number bigint not null, created_at timestamptz not null default now(),
	delivery_attempts integer not null default 0, delivery_status varchar(20) not null default 'pending', first_attempt_at timestamptz,
	last_attempt_at timestamptz, next_retry_at timestamptz, delivered_at timestamptz, target_topic varchar(255) not null, partition_key varchar(255),
	max_attempts integer not null default 5, base_delay_ms integer not null default 1000, max_delay_ms integer not null default 60000,
	backoff_multiplier decimal(3,2) not null default 2.0)`

// The message of an adopted row is what publish_single_event of the Storage document makes of it: their ids and numbers.
// enqueue continues their numbers.
//
// CONTRACT: C-91
func TestAdoptedStorageMessages(t *testing.T) {
	t.Parallel()
	o := installed(t)
	const insert = `insert into storage_outbox (outbox_id, aggregate_id, aggregate_type, event_type, event_payload, event_metadata, sequence_number, target_topic, partition_key, max_delay_ms, backoff_multiplier)
		values ('outbox_%[1]d', '7', 'memory', 'STORAGE_MEMORY_ADDED', '{"total": 0.10, "id": 9007199254740993, "metadata": "gone"}', %[2]s, %[1]d, 'memories', '7', 90000000, 0.5)`
	flat := `'{"correlation_id": "c-1", "event_version": "1.0.0"}'`
	file := o.adoptTable(t, storageTable, fmt.Sprintf(insert, 41, flat), "--layout", "storage", "--namespace", "shop")
	o.exec(t, asRole(o.producer, fmt.Sprintf(insert, 42, flat)))
	o.exec(t, asRole(o.producer, fmt.Sprintf(insert, 43, `'{"tags": ["a", "b"]}'`)))
	run(t, "", "adopt", "status", "-f", file).ended(t, 3, "1 refused")
	o.exec(t, `select outbox.enqueue('shop', 'memories', '{}', p_aggregate_type => 'memory', p_aggregate_id => '7', p_options => '{"aggregateSequence": true}')`)

	url, requests := consumerOf(t)
	dispatcher := o.file(t, o.dispatcher, dispatching("{http: {url: '"+url+"'}}")+"message: {format: Storage}\ndelivery: {ordering: Key}\n")
	run(t, "", "once", "-f", dispatcher, "-n", "3").ok(t, "delivered 3, failed 0")
	for _, number := range []int{41, 42} {
		got := <-requests
		want := fmt.Sprintf(`{"id":9007199254740993,"metadata":{"correlation_id":"c-1","event_version":"1.0.0","outbox_id":"outbox_%[1]d","sequence_number":%[1]d},"total":0.10}`, number)
		if h := got.header; got.body != want || h.Get("event_type") != "STORAGE_MEMORY_ADDED" || h.Get("aggregate_id") != "7" || h.Get("correlation_id") != "c-1" {
			t.Errorf("%v %s, want %s", h, got.body, want)
		}
	}
	var enqueued struct {
		Metadata struct {
			Number int `json:"sequence_number"`
		}
	}
	check(t, json.Unmarshal([]byte((<-requests).body), &enqueued))
	if enqueued.Metadata.Number != 44 {
		t.Errorf("enqueue gives the number %d, want 44, after their 43, which is refused", enqueued.Metadata.Number)
	}
	o.exec(t, `delete from public.storage_outbox where outbox_id = 'outbox_43'`)
	run(t, "", "adopt", "back", "-f", file).ok(t, "warning: enqueue has given numbers beyond their table's to 1 aggregates")
}

const modkitTable = `create table modkit_outbox_events (
	id uuid primary key, namespace text not null, topic text not null, tenant_id uuid, dedupe_key text, payload jsonb not null, status text not null,
	attempts int not null default 0, next_attempt_at timestamptz not null default now(), locked_by uuid, locked_until timestamptz, last_error text,
	created_at timestamptz not null default now(), updated_at timestamptz not null default now());
create unique index on modkit_outbox_events (namespace, topic, dedupe_key) where dedupe_key is not null`

// The message of an adopted row has what ModKit's ClaimedMessage has. Rows of another namespace stay with their worker, or
// keep their own.
//
// CONTRACT: C-91
// REQUIREMENT: cpt-cf-mini-chat-flow-usage-outbox-dispatch, cpt-cf-mini-chat-dod-usage-outbox-idempotency
func TestAdoptedModKitMessages(t *testing.T) {
	t.Parallel()
	o := installed(t)
	const tenant = "0190b6c4-1f2e-7abc-8def-001122334455"
	insert := func(id, namespace, more string) string {
		return `insert into modkit_outbox_events (id, namespace, topic, tenant_id, dedupe_key, payload, status, attempts) values ('0190b6c4-1f2e-7abc-8def-00000000000` + id +
			`', '` + namespace + `', 'usage', ` + more + `)`
	}
	full := `'` + tenant + `', '` + tenant + `/turn1/req1', '{"tokens": 1.50}', `
	file := o.adoptTable(t, modkitTable, insert("1", "shop", full+`'pending', 2`)+";"+insert("2", "billing", `null, null, '[1]', 'pending', 0`)+";"+
		insert("3", "shop", `null, null, '{"n": 3}', 'dead', 20`), "--layout", "modkit", "--namespace", "shop")
	o.exec(t, asRole(o.producer, insert("4", "shop", `null, null, '{"n": 4}', 'pending', 0`)))
	o.exec(t, asRole(o.producer, insert("5", "billing", `null, null, '{"n": 5}', 'pending', 0`)))
	run(t, "", "adopt", "status", "-f", file).ok(t, "theirs 1, ours 1", "waiting: theirs 0, ours 2")

	url, requests := consumerOf(t)
	run(t, "", "once", "-f", o.file(t, o.dispatcher, dispatching("{http: {url: '"+url+"'}}")), "-n", "2").ok(t, "delivered 2, failed 0")
	all := map[string]received{}
	for range 2 {
		one := <-requests
		all[one.header.Get("ce-id")] = one
	}
	for _, want := range []received{
		{http.Header{"Ce-Id": {"0190b6c4-1f2e-7abc-8def-000000000001"}, "Ce-Tenantid": {tenant}, "Ce-Dedupekey": {tenant + "/turn1/req1"}, "Ce-Attempt": {"3"}}, `{"tokens": 1.50}`},
		{http.Header{"Ce-Id": {"0190b6c4-1f2e-7abc-8def-000000000004"}, "Ce-Tenantid": nil, "Ce-Dedupekey": nil, "Ce-Attempt": {"1"}}, `{"n": 4}`},
	} {
		got := all[want.header["Ce-Id"][0]]
		want.header["Ce-Outboxnamespace"], want.header["Ce-Topic"] = []string{"shop"}, []string{"usage"}
		for name, values := range want.header {
			if fmt.Sprint(got.header[name]) != fmt.Sprint(values) {
				t.Errorf("%s is %v, want %v", name, got.header[name], values)
			}
		}
		if got.body != want.body {
			t.Errorf("the body is %s, want %s", got.body, want.body)
		}
	}
	run(t, "", "adopt", "back", "-f", file).ok(t)
	if got := o.text(t, `select string_agg(status, ' ' order by id) from public.modkit_outbox_events`); got != "delivered pending dead delivered pending" {
		t.Errorf("their rows are %s", got)
	}

	run(t, "", "adopt", "shadow", "-f", file, "--layout", "modkit").ok(t, `status "pending": 2 rows, to be sent`)
	run(t, "", "adopt", "cutover", "-f", file).ok(t, "2 rows moved")
	if n := o.count(t, "namespace = 'billing' and live"); n != 2 {
		t.Errorf("%d events of billing, want 2", n)
	}
}
