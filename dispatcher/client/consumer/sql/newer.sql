select count(*) from {schema}event_tokens
where tracking_id = $1 and consumer_id = $2 and fencing_token > $3
