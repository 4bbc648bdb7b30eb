-- The tables of a consumer. They may be run again, with psql or by a service's migrations, in any schema.
create table if not exists processed_events (
    tracking_id   uuid        not null,  -- the event's id
    consumer_id   text        not null check (consumer_id <> ''),
    processed_at  timestamptz not null default now(),
    fencing_token bigint      not null default 0,  -- of the delivery that was handled
    primary key (tracking_id, consumer_id)         -- of both, so that consumers do not wait for each other
);

-- A table that was there may have the first three columns alone. It is read first, since "add column if not exists" would wait
-- for all effects that are under way.
do $$
begin
    perform fencing_token from processed_events limit 0;
exception when undefined_column then
    alter table processed_events add column if not exists fencing_token bigint not null default 0;
end $$;

-- A sweep reads one consumer's records from the oldest on, and none of another that keeps them longer.
create index if not exists idx_processed_events_ttl on processed_events (consumer_id, processed_at);

-- The highest fencing token seen for an event, handled or not. Only consumers with Options.Fence write it.
create table if not exists event_tokens (
    tracking_id   uuid        not null,
    consumer_id   text        not null,
    fencing_token bigint      not null,
    seen_at       timestamptz not null default now(),
    primary key (tracking_id, consumer_id)
);

create index if not exists idx_event_tokens_ttl on event_tokens (consumer_id, seen_at);

-- Legal holds. While one is not released, no record of its consumer is removed; of no consumer, when consumer_id is null.
create table if not exists processed_event_holds (
    hold        text        primary key check (hold <> ''),
    consumer_id text,
    reason      text        not null,
    placed_at   timestamptz not null default now(),
    released_at timestamptz
);
