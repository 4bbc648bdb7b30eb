begin
    v_event := outbox_adopt(p_adoption => {name}, p_id => {r}.{id}::text, p_dedupe_key => {dedupe}, p_counted => {counted},
        p_live => {live}, p_changed => {changed}, p_namespace => {namespace}, p_topic => {topic}, p_payload => {payload},
        p_event_type => {type}, p_aggregate_type => {aggregateType}, p_aggregate_id => {aggregateId},
        p_partition_key => {key}, p_tenant_id => {tenant}, p_sequence => {sequence}, p_headers => {headers}, p_created => {created}, p_due => {due},
        p_attempts => {attempts}, p_max_attempts => {maxAttempts}, p_retry => {retry},
        p_row => {row});{mark}
exception when others then
    begin
        perform outbox_adopt_refuse({name}, {r}.{id}::text, {counted}, {row}, sqlerrm);
    exception when others then
        {failed}
    end;
end;
