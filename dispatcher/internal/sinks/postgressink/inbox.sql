create table public.inbox_events (
    id                 uuid        primary key,  -- the event's, which consumers know as tracking_id
    namespace          text        not null,
    topic              text        not null,
    event_type         text,
    aggregate_type     text,
    aggregate_id       text,
    partition_key      text        not null,     -- the partition key, else aggregate_id, else the id
    tenant_id          uuid,
    dedupe_key         text,
    sequence           bigint      not null,     -- the outbox's order: of one key it only rises
    aggregate_sequence bigint,               -- the event's number in its aggregate, when it has one
    fencing_token      bigint      not null,     -- the lease number of the delivery that got here first
    headers            jsonb       not null,
    payload            jsonb       not null,
    created_at         timestamptz not null,     -- on the clock of the outbox's database
    received_at        timestamptz not null default clock_timestamp()
);
