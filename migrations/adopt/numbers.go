package adopt

import (
	"fmt"
)

// numbered reports whether the rows of their table have numbers in their aggregates.
func (r *run) numbered() bool { return r.layout.fields["sequence"] != "" }

// numbersName is the function that has enqueue continue above the numbers of their table: when it first numbers an aggregate,
// and again when their table is ahead. Their producers write no number of ours, so that none waits for another.
func (r *run) numbersName() string {
	return quote(r.schema) + "." + quote("outbox_numbers_"+r.spec.Name)
}

// renderNumbers fills in a file about the numbers of their table.
func (r *run) renderNumbers(file string) string {
	return r.render(file, map[string]string{
		"{numbers}": r.numbersName(), "{regclass}": literal(r.their.name()), "{namespace}": literal(r.spec.Namespace), "{sequence}": r.in(r.layout.fields["sequence"], "r"),
		"{aggregateType}": r.in(r.layout.fields["aggregateType"], "r"), "{aggregateId}": r.in(r.layout.fields["aggregateId"], "r"),
	})
}

// watchNumbers are the statements that make that function, and its trigger.
func (r *run) watchNumbers() []string {
	if !r.numbered() {
		return nil
	}
	return []string{
		r.renderNumbers("numbers"),
		"revoke all on function " + r.numbersName() + "() from public",
		fmt.Sprintf("create or replace trigger %s before insert on outbox_aggregate_sequences for each row when (new.namespace = %s and new.added > 0) execute function %s()",
			r.trigger(), literal(r.spec.Namespace), r.numbersName()),
	}
}

// keepNumbers are the statements that write down the numbers of their table, which is there, for good.
func (r *run) keepNumbers() []string {
	if !r.numbered() || r.state == Shadow {
		return nil
	}
	return []string{r.renderNumbers("keep_numbers")}
}

// leaveNumbers are the statements that remove what watchNumbers has made.
func (r *run) leaveNumbers() []string {
	if !r.numbered() {
		return nil
	}
	return []string{
		fmt.Sprintf("drop trigger if exists %s on outbox_aggregate_sequences", r.trigger()),
		"drop function if exists " + r.numbersName() + "()",
	}
}

// checkNumbers warns of aggregates whose events have been numbered by enqueue too: their producers, who continue where
// their table ends, would give these numbers again.
func (r *run) checkNumbers() error {
	if !r.numbered() || r.state == Shadow {
		return nil
	}
	var ahead int64
	count := fmt.Sprintf(`select count(*) from (select from %s as r join outbox_aggregate_sequences as s
		on s.namespace = %s and s.aggregate_type = coalesce(%s, '') and s.aggregate_id = %s
		group by s.namespace, s.aggregate_type, s.aggregate_id, s.last having s.last > max(%s)) as ahead`,
		r.their.name(), literal(r.spec.Namespace), r.in(r.layout.fields["aggregateType"], "r"), r.in(r.layout.fields["aggregateId"], "r"), r.in(r.layout.fields["sequence"], "r"))
	if err := r.tx.QueryRow(r.ctx, count).Scan(&ahead); err != nil || ahead == 0 {
		return err
	}
	r.result.Warnings = append(r.result.Warnings, fmt.Sprintf("enqueue has given numbers beyond their table's to %d aggregates: their producers would give them again; see outbox_aggregate_sequences, and have consumers expect it", ahead))
	return nil
}
