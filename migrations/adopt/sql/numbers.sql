create or replace function {numbers}() returns trigger
language plpgsql
security definer
set search_path = {schema}, pg_temp
as $adopt$
begin
    if to_regclass({regclass}) is not null then -- it may be dropped before the adoption ends
        -- Another adoption of the namespace may have raised it already.
        new.last := new.added + greatest(new.last - new.added, (select max({sequence}) from {table} as r
            where {aggregateId} = new.aggregate_id and {aggregateType} = new.aggregate_type));
    end if;
    return new;
end
$adopt$
