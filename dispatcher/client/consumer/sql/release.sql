update {schema}processed_event_holds set released_at = now()
where hold = $1 and released_at is null
