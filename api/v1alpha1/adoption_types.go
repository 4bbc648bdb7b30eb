package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Adoption takes over an existing outbox table of a service without a change to its producers. A Job carries it out
// with the login of the migration, which needs rights on the table.
//
// +kubebuilder:validation:XValidation:rule="self.phase == 'Back' || has(self.__namespace__) || self.layout == 'ModKit' || has(self.columns) && has(self.columns.__namespace__)",fieldPath=".namespace",message="namespace is missing: the outbox namespace of the events; set it"
// +kubebuilder:validation:XValidation:rule="self.layout != 'Columns' || has(self.table) && has(self.columns)",message="layout Columns needs table and columns; set them, or choose the layout that the table has"
// +kubebuilder:validation:XValidation:rule="self.layout == 'Columns' || !has(self.columns)",fieldPath=".columns",message="columns belong to layout Columns; remove them, or set layout to Columns"
// +kubebuilder:validation:XValidation:rule="self.layout != 'Debezium' || has(self.slot)",fieldPath=".slot",message="slot is missing: only the connector's replication slot says what was sent; set it to slot.name of the connector"
// +kubebuilder:validation:XValidation:rule="self.layout == 'Debezium' || !has(self.slot)",fieldPath=".slot",message="slot belongs to layout Debezium; remove it, or set layout to Debezium"
// +kubebuilder:validation:XValidation:rule="self.layout == 'Debezium' || !has(self.publication)",fieldPath=".publication",message="publication belongs to layout Debezium; remove it, or set layout to Debezium"
// +kubebuilder:validation:XValidation:rule="self.layout != 'M10' || has(self.topic)",fieldPath=".topic",message="layout M10 has no column with a topic; set topic"
// +kubebuilder:validation:XValidation:rule="self.layout != 'Columns' || has(self.topic) || !has(self.columns) || has(self.columns.topic)",fieldPath=".topic",message="topic is missing; set it, or name the column in columns.topic"
// +kubebuilder:validation:XValidation:rule="oldSelf.phase != 'Cutover' || self.phase != 'Shadow'",fieldPath=".phase",message="phase goes from Cutover to Shadow by way of Back; set it to Back first"
// +kubebuilder:validation:XValidation:rule="oldSelf.phase == 'Back' || self.layout == oldSelf.layout && (has(self.__namespace__) ? has(oldSelf.__namespace__) && self.__namespace__ == oldSelf.__namespace__ : !has(oldSelf.__namespace__)) && (has(self.table) ? has(oldSelf.table) && self.table == oldSelf.table : !has(oldSelf.table)) && (has(self.topic) ? has(oldSelf.topic) && self.topic == oldSelf.topic : !has(oldSelf.topic)) && (has(self.columns) ? has(oldSelf.columns) && self.columns == oldSelf.columns : !has(oldSelf.columns)) && (has(self.slot) ? has(oldSelf.slot) && self.slot == oldSelf.slot : !has(oldSelf.slot)) && (has(self.publication) ? has(oldSelf.publication) && self.publication == oldSelf.publication : !has(oldSelf.publication))",message="layout, table, namespace, topic, columns, slot and publication change only from phase Back; set phase to Back, and change them then"
type Adoption struct {
	// name is the name of the adoption. It becomes part of the names of a trigger and
	// a function in the database.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=40
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z][a-z0-9_]*$')",message="name must be lower-case alphanumeric characters and underscores, the first one not a digit, such as orders"
	Name string `json:"name,omitempty"`

	// layout is the layout of the table: ModKit, M10, Overview, Storage, Debezium, or Columns
	// for any other.
	// +required
	Layout AdoptionLayout `json:"layout,omitempty"`

	// table is the service's table, with its schema, such as public.order_events.
	// When not set: public.modkit_outbox_events, m10_recovery.outbox, outbox.events,
	// public.storage_outbox or public.outboxevent, by the layout.
	// +optional
	// +kubebuilder:validation:MinLength=3
	// +kubebuilder:validation:MaxLength=127
	// +kubebuilder:validation:XValidation:rule="self.matches('^[^.\"]{1,63}[.][^.\"]{1,63}$')",message="table must be a schema and a table with a dot between them, such as public.order_events"
	Table string `json:"table,omitempty"`

	// namespace is the outbox namespace of the events. Of layout ModKit, or with
	// columns.namespace, it chooses the rows of that namespace. When not set: the one
	// in each row.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	Namespace string `json:"namespace,omitempty"`

	// topic is the topic of the events. When not set: the one in each row.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	Topic string `json:"topic,omitempty"`

	// columns names the columns of the table, for layout Columns.
	// +optional
	Columns *AdoptionColumns `json:"columns,omitempty"`

	// slot is slot.name of the connector, for layout Debezium: the replication slot
	// says which rows it has not sent. Its plugin is pgoutput. The migration's login
	// needs the attribute REPLICATION.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9_]+$')",message="slot must be lower-case alphanumeric characters and underscores, such as debezium"
	Slot string `json:"slot,omitempty"`

	// publication is publication.name of the connector, for layout Debezium. When not
	// set: dbz_publication.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[^\\\\x27\\\\x5c${}[:cntrl:]]*$')",message="publication must be a name without quotes, backslashes, dollar signs, braces and control characters, such as dbz_publication"
	Publication string `json:"publication,omitempty"`

	// phase is Shadow (rows are counted and checked as events, while the service's
	// worker sends them), Cutover (open and new rows become events; the worker finds
	// none) or Back (the adoption is undone).
	// +required
	Phase AdoptionPhase `json:"phase,omitempty"`
}

// AdoptionLayout is the layout of a table.
// +kubebuilder:validation:MaxLength=16
// +kubebuilder:validation:Enum=ModKit;M10;Overview;Storage;Debezium;Columns
type AdoptionLayout string

// The layouts.
const (
	// LayoutModKit is the shared table of modkit-db.
	LayoutModKit AdoptionLayout = "ModKit"
	// LayoutM10 is the table of the M10 outbox contract.
	LayoutM10 AdoptionLayout = "M10"
	// LayoutOverview has topic, payload and status.
	LayoutOverview AdoptionLayout = "Overview"
	// LayoutStorage has aggregates with sequence numbers, and retries of its own.
	LayoutStorage AdoptionLayout = "Storage"
	// LayoutDebezium is read by Debezium's outbox event router, and has no column that says what was sent.
	LayoutDebezium AdoptionLayout = "Debezium"
	// LayoutColumns is any other, whose columns are named.
	LayoutColumns AdoptionLayout = "Columns"
)

// AdoptionPhase is the phase that an adoption is to reach.
// +kubebuilder:validation:Enum=Shadow;Cutover;Back
type AdoptionPhase string

// The phases.
const (
	// AdoptionShadow counts and checks, and delivers nothing.
	AdoptionShadow AdoptionPhase = "Shadow"
	// AdoptionCutover delivers the rows by the dispatchers.
	AdoptionCutover AdoptionPhase = "Cutover"
	// AdoptionBack undoes the adoption.
	AdoptionBack AdoptionPhase = "Back"
)

// AdoptionColumns names the columns of a table.
//
// +kubebuilder:validation:XValidation:rule="[has(self.completed), has(self.status), has(self.sent)].exists_one(set, set)",message="columns must have one of completed, status and sent, by which a row says whether it waits; keep one of them"
type AdoptionColumns struct {
	// id identifies a row.
	// +required
	ID AdoptionColumn `json:"id,omitempty"`

	// payload is JSON.
	// +required
	Payload AdoptionColumn `json:"payload,omitempty"`

	// completed is when the row was sent. It is null while the row waits.
	// +optional
	Completed AdoptionColumn `json:"completed,omitempty"`

	// status says whether the row waits.
	// +optional
	Status *AdoptionStatusColumn `json:"status,omitempty"`

	// sent is Delete where the worker deletes what it has sent.
	// +optional
	// +kubebuilder:validation:Enum=Delete
	Sent string `json:"sent,omitempty"`

	// topic is the event's topic.
	// +optional
	Topic AdoptionColumn `json:"topic,omitempty"`

	// type is the event's type.
	// +optional
	Type AdoptionColumn `json:"type,omitempty"`

	// aggregateType is the type of the aggregate.
	// +optional
	AggregateType AdoptionColumn `json:"aggregateType,omitempty"`

	// aggregateID is the id of the aggregate.
	// +optional
	AggregateID AdoptionColumn `json:"aggregateID,omitempty"`

	// key orders events, and partitions messages.
	// +optional
	Key AdoptionColumn `json:"key,omitempty"`

	// headers is a JSON object of strings.
	// +optional
	Headers AdoptionColumn `json:"headers,omitempty"`

	// created is when the row was inserted.
	// +optional
	Created AdoptionColumn `json:"created,omitempty"`

	// due is when the row is to be sent, or retried.
	// +optional
	Due AdoptionColumn `json:"due,omitempty"`

	// attempts is the number of attempts so far.
	// +optional
	Attempts AdoptionColumn `json:"attempts,omitempty"`

	// dedupeKey is what consumers are idempotent on. When not set: made of the id.
	// +optional
	DedupeKey AdoptionColumn `json:"dedupeKey,omitempty"`

	// tenantID is the tenant, a UUID.
	// +optional
	TenantID AdoptionColumn `json:"tenantID,omitempty"`

	// namespace is the outbox namespace of the row.
	// +optional
	Namespace AdoptionColumn `json:"namespace,omitempty"`
}

// AdoptionColumn is the name of a column.
//
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=63
// +kubebuilder:validation:XValidation:rule="self.matches('^[^\"=:]*$')",message="a column must be a name without quotes, colons and equals signs; correct it"
type AdoptionColumn string

// AdoptionStatusColumn is a column whose values say whether a row waits.
type AdoptionStatusColumn struct {
	// column is the name of the column.
	// +required
	Column AdoptionColumn `json:"column,omitempty"`

	// open lists the values of rows that are still to be sent: that of a waiting row
	// first, then others, such as NEW and SENDING.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.all(v, v.matches('^[^:,]*$'))",message="open must be values without colons and commas; correct them"
	Open []string `json:"open,omitempty"`

	// completed is the value of a row that was sent, such as DONE. After commas follow
	// those of other rows that are not to be sent: DONE,FAILED.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[^:]*$')",message="completed must be a value without colons; correct it"
	Completed string `json:"completed,omitempty"`
}

// AdoptionStatus is the state of an adoption as its Job last saw it. In phase Shadow the Job checks every 10 minutes.
type AdoptionStatus struct {
	// name is the name of the adoption.
	// +required
	// +kubebuilder:validation:MaxLength=40
	Name string `json:"name,omitempty"`

	// phase is the phase that the adoption has reached: Pending (not begun), Shadow,
	// Cutover, Returning (waits for events in delivery) or Back.
	// +required
	// +kubebuilder:validation:Enum=Pending;Shadow;Cutover;Returning;Back
	Phase string `json:"phase,omitempty"`

	// since is when the shadow began, on the database's clock.
	// +optional
	Since *metav1.Time `json:"since,omitempty"`

	// theirs is the number of rows in the service's table since then. With layout
	// Debezium only refused is counted.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Theirs int64 `json:"theirs"`

	// ours is the number of events that were made from these rows.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Ours int64 `json:"ours"`

	// missing is the number of rows without an event that were not refused.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Missing int64 `json:"missing"`

	// extra is the number of events without a row.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Extra int64 `json:"extra"`

	// refused is the number of rows that cannot become events. They stay with the
	// service's worker; with layout Debezium, from the cutover until Back.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Refused int64 `json:"refused"`
}

// The phases of an AdoptionStatus that spec.adopt does not have.
const (
	// AdoptionPending: the adoption has not begun.
	AdoptionPending = "Pending"
	// AdoptionReturning: the adoption waits for events in delivery.
	AdoptionReturning = "Returning"
)
