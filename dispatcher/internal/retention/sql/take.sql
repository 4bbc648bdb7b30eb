-- Takes the lease of all sweeps, or keeps it: a row for whoever has it now.
-- $1 worker; $2 for how long.
insert into outbox.outbox_sweeps as sweep (name, holder, held_until)
values ('retention', $1::uuid, now() + $2::interval)
on conflict (name) do update
set holder = excluded.holder, held_until = excluded.held_until
where sweep.holder is null or sweep.holder = excluded.holder or sweep.held_until < now()
returning true
