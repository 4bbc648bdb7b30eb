package desired

import (
	"cmp"
	"slices"
	"strings"
	"time"

	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

const (
	keyPlan    = "plan.yaml"
	planDir    = "/etc/outbox/plan"
	volumePlan = "plan"

	// AdoptionInterval is how long after one look at the tables of adoptions in phase Shadow comes the next.
	AdoptionInterval = 10 * time.Minute
)

// plan is the file that `dispatcher adopt apply --plan` reads.
type plan struct {
	Adoptions []planned `json:"adoptions,omitempty"`
	// Removed are adoptions that the spec had: they go back, unless they are cut over.
	Removed []string `json:"removed,omitempty"`
}

type planned struct {
	Name      string            `json:"name"`
	Phase     string            `json:"phase"`
	Layout    string            `json:"layout"`
	Table     string            `json:"table,omitempty"`
	Namespace string            `json:"namespace,omitempty"`
	Topic     string            `json:"topic,omitempty"`
	Columns   map[string]string `json:"columns,omitempty"`
	// Slot and Publication are the connector's, for layout Debezium.
	Slot        string `json:"slot,omitempty"`
	Publication string `json:"publication,omitempty"`
}

// planOf is the plan of the spec. Adoptions that it had before are in the status.
func planOf(o *v1alpha1.Outbox) (p plan) {
	for _, a := range o.Spec.Adopt {
		p.Adoptions = append(p.Adoptions, planned{
			Name: a.Name, Phase: string(a.Phase), Layout: strings.ToLower(string(a.Layout)), Table: a.Table,
			Namespace: a.Namespace, Topic: a.Topic, Columns: planColumns(a.Columns), Slot: a.Slot, Publication: a.Publication,
		})
	}
	slices.SortFunc(p.Adoptions, func(a, b planned) int { return cmp.Compare(a.Name, b.Name) })
	for _, s := range o.Status.Adoptions {
		if !slices.ContainsFunc(o.Spec.Adopt, func(a v1alpha1.Adoption) bool { return a.Name == s.Name }) {
			p.Removed = append(p.Removed, s.Name)
		}
	}
	slices.Sort(p.Removed)
	return p
}

// planColumns are the columns as `dispatcher adopt shadow --column` names them.
func planColumns(c *v1alpha1.AdoptionColumns) map[string]string {
	if c == nil {
		return nil
	}
	columns := map[string]string{}
	for name, column := range map[string]v1alpha1.AdoptionColumn{
		"id": c.ID, "payload": c.Payload, "completed": c.Completed, "topic": c.Topic, "type": c.Type, "aggregateType": c.AggregateType,
		"aggregateId": c.AggregateID, "key": c.Key, "headers": c.Headers, "created": c.Created, "due": c.Due, "attempts": c.Attempts,
		"dedupeKey": c.DedupeKey, "tenantId": c.TenantID, "namespace": c.Namespace, "sent": v1alpha1.AdoptionColumn(strings.ToLower(c.Sent)),
	} {
		if column != "" {
			columns[name] = string(column)
		}
	}
	if s := c.Status; s != nil {
		columns["status"] = string(s.Column) + ":" + strings.Join(s.Open, ",") + ":" + s.Completed
	}
	return columns
}

// AdoptionConfigMap holds the files that the Job of the Outbox's adoptions loads: a connection with the migration's login,
// and what to do. It is nil when there is nothing to do.
func AdoptionConfigMap(o *v1alpha1.Outbox) *corev1ac.ConfigMapApplyConfiguration {
	p := planOf(o)
	if !Migrates(&o.Spec) || len(p.Adoptions) == 0 && len(p.Removed) == 0 {
		return nil
	}
	bare := o.Spec.DeepCopy()
	bare.Journal, bare.Migration.M10 = nil, nil
	migrates, _ := migrationConfigs(o, bare)
	return files(o, ComponentAdoption, o.Name+"-adopt", map[string]string{keyConfig: render(migrates), keyPlan: render(p)})
}

// NewAdoption is the Job that brings the Outbox's adoptions to their phases, and counts their rows; nil when there is
// nothing to do. It has the migration's login and pod template. Errors wrap [ErrPodTemplate].
func NewAdoption(o *v1alpha1.Outbox, p Platform) (*Migration, error) {
	files := AdoptionConfigMap(o)
	if files == nil {
		return nil, nil
	}
	base := podTemplate(o, p, ComponentAdoption, *files.Name, OutboxRefs(o))
	base.Spec.WithVolumes(corev1ac.Volume().WithName(volumePlan).WithConfigMap(corev1ac.ConfigMapVolumeSource().
		WithName(*files.Name).WithItems(corev1ac.KeyToPath().WithKey(keyPlan).WithPath(keyPlan))))
	container(base).WithVolumeMounts(mount(volumePlan, planDir))
	template, err := jobTemplate(base, "spec.migration.podTemplate", o.Spec.Migration.PodTemplate,
		"/dispatcher", "adopt", "apply", "-f", configFile, "--plan", planDir+"/"+keyPlan)
	if err != nil {
		return nil, err
	}
	m := &Migration{Hash: Hash(template), owner: o, component: ComponentAdoption, word: "adopt", template: template}
	p.inherit(o, template)
	if slices.ContainsFunc(o.Spec.Adopt, func(a v1alpha1.Adoption) bool { return a.Phase == v1alpha1.AdoptionShadow }) {
		m.Every = AdoptionInterval
	}
	return m, nil
}
