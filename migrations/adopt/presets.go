package adopt

// inHands is when a row is due that a worker has in its hands, where the table does not record until when.
const inHands = "now() + interval '1 minute'"

// noLimit is the retry budget of a row whose worker knows none: no dispatcher makes it dead.
const noLimit = "32767"

var presets = map[Layout]layout{
	ModKit: {
		table: "public.modkit_outbox_events",
		columns: []string{"id", "namespace", "topic", "tenant_id", "dedupe_key", "payload", "status", "attempts", "next_attempt_at",
			"locked_by", "locked_until", "created_at", "updated_at"},
		id: "id", position: "created_at", payload: "payload", namespace: "namespace",
		fields: map[string]string{
			"namespace": "{r}.namespace", "topic": "{r}.topic", "tenantId": "{r}.tenant_id", "dedupeKey": "{r}.dedupe_key", "payload": "{r}.payload",
			"created": "{r}.created_at", "attempts": triedAttempts("{r}.attempts"), "maxAttempts": triedBudget("{r}.attempts"),
			"due": "case when {r}.status = 'processing' then greatest({r}.next_attempt_at, {r}.locked_until) else {r}.next_attempt_at end",
		},
		status: "status", opens: []string{"pending", "processing"}, closed: []string{"delivered", "dead"},
		complete: "status = 'delivered', locked_by = null, locked_until = null, updated_at = now()",
		reopen:   "status = 'pending', attempts = e.attempts, next_attempt_at = e.next_attempt_at, locked_by = null, locked_until = null, updated_at = now()",
		order:    "{r}.created_at, {r}.id", exhausted: "{r}.attempts >= 20", exhaustedGets: triedGets,
	},
	M10: {
		table:   "m10_recovery.outbox",
		columns: []string{"id", "aggregate_type", "aggregate_id", "event_type", "payload", "created_at", "processed_at", "retry_count", "process_after", "claimed_at", "claimed_by"},
		id:      "id", position: "id", payload: "payload",
		fields: map[string]string{
			"payload": "{r}.payload", "type": "{r}.event_type", "aggregateType": "{r}.aggregate_type", "aggregateId": "{r}.aggregate_id",
			"created":  "coalesce({r}.created_at, now())",
			"due":      "coalesce(greatest({r}.process_after, {r}.claimed_at + interval '5 minutes'), {r}.created_at, now())",
			"attempts": "coalesce({r}.retry_count, 0)", "maxAttempts": noLimit, "retry": `'{"strategy": "PowerOfTwo"}'`,
		},
		open: "{r}.processed_at is null", complete: "processed_at = now(), claimed_at = null, claimed_by = null",
		reopen: "processed_at = null, process_after = e.next_attempt_at, retry_count = e.attempts, claimed_at = null, claimed_by = null",
		order:  "{r}.created_at, {r}.id",
	},
	Overview: {
		table:   "outbox.events",
		columns: []string{"id", "topic", "payload", "status", "attempt_count", "next_attempt_at", "created_at"},
		id:      "id", position: "created_at", payload: "payload",
		fields: map[string]string{
			"topic": "{r}.topic", "payload": "{r}.payload", "created": "{r}.created_at",
			"due":      "case when {r}.status = 'processing' then greatest({r}.next_attempt_at, " + inHands + ") else {r}.next_attempt_at end",
			"attempts": "{r}.attempt_count", "maxAttempts": noLimit, "retry": `'{"strategy": "Linear", "base": "60s", "max": "24h"}'`,
		},
		status: "status", opens: []string{"pending", "processing"}, closed: []string{"processed", "failed"}, complete: "status = 'processed'",
		reopen: "status = 'pending', attempt_count = e.attempts, next_attempt_at = e.next_attempt_at",
		order:  "{r}.created_at, {r}.next_attempt_at",
	},
	Storage: {
		table: "public.storage_outbox",
		columns: []string{"outbox_id", "aggregate_id", "aggregate_type", "event_type", "event_payload", "event_metadata", "sequence_number", "created_at",
			"delivery_attempts", "delivery_status", "next_retry_at", "delivered_at", "target_topic", "partition_key",
			"max_attempts", "base_delay_ms", "max_delay_ms", "backoff_multiplier"},
		id: "outbox_id", position: "created_at", payload: "event_payload",
		fields: map[string]string{
			"topic": "{r}.target_topic", "payload": "{r}.event_payload", "type": "{r}.event_type", "aggregateType": "{r}.aggregate_type",
			"aggregateId": "{r}.aggregate_id", "key": "{r}.partition_key", "created": "{r}.created_at",
			// Their id and number are what consumers know. Metadata that headers cannot have are refused.
			"headers": `{r}.event_metadata || jsonb_build_object('outbox_id', {r}.outbox_id)`, "sequence": "{r}.sequence_number",
			"due": "case when {r}.delivery_status = 'processing' then greatest({r}.next_retry_at, " + inHands +
				") else coalesce({r}.next_retry_at, {r}.created_at) end",
			// A row that is open is sent once at least.
			"attempts": "least({r}.delivery_attempts, 999)", "maxAttempts": "least(greatest({r}.max_attempts, {r}.delivery_attempts + 1), 1000)",
			"retry": `jsonb_build_object('strategy', 'Multiplier', 'base', least({r}.base_delay_ms, 86400000) || 'ms', 'max', least({r}.max_delay_ms, 86400000) || 'ms',
            'multiplier', greatest({r}.backoff_multiplier, 1)::text, 'jitterPercent', 25)`,
		},
		status: "delivery_status", opens: []string{"pending", "processing", "failed"}, closed: []string{"delivered", "dlq"},
		complete: "delivery_status = 'delivered', delivered_at = now()",
		reopen:   "delivery_status = case e.attempts when 0 then 'pending' else 'failed' end, delivery_attempts = e.attempts, next_retry_at = e.next_attempt_at, delivered_at = null",
		order:    "{r}.created_at, {r}.sequence_number", exhausted: "{r}.delivery_attempts >= {r}.max_attempts", exhaustedGets: "is sent once more",
	},
	Debezium: {
		table:   "public.outboxevent",
		columns: []string{"id", "aggregatetype", "aggregateid", "type", "payload"},
		id:      "id", payload: "payload",
		fields: map[string]string{
			"topic": "{r}.aggregatetype::text", "payload": "{r}.payload::jsonb", "type": "{r}.type::text",
			"aggregateType": "{r}.aggregatetype::text", "aggregateId": "{r}.aggregateid::text",
		},
		open: "false",
		log:  true,
	},
}
