package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/migrations/adopt"
)

// The phases of an adoption in a plan, and in what is left of it. A plan has no Returning.
const (
	phaseShadow    = "Shadow"
	phaseCutover   = "Cutover"
	phaseReturning = "Returning"
	phaseBack      = "Back"
)

// adoptPlan is the file of `adopt apply --plan`.
type adoptPlan struct {
	Adoptions []plannedAdoption `json:"adoptions"`
	// Removed are names: what is in the shadow goes back, what is cut over stays.
	Removed []string `json:"removed"`
}

type plannedAdoption struct {
	Name      string            `json:"name"`
	Phase     string            `json:"phase"`
	Layout    adopt.Layout      `json:"layout"`
	Table     string            `json:"table"`
	Namespace string            `json:"namespace"`
	Topic     string            `json:"topic"`
	Columns   map[string]string `json:"columns"`
	// Slot and Publication are of layout debezium.
	Slot        string `json:"slot"`
	Publication string `json:"publication"`
}

func adoptApplyCommand() *cobra.Command {
	var file, planFile string
	cmd := &cobra.Command{
		Use: "apply -f FILE --plan FILE", Short: "Bring adoptions to the phases that a file says", Args: cobra.NoArgs,
		Long: `Bring each adoption of a file to its phase, by the steps that are missing: Shadow, Cutover (from nothing, by way of
Shadow) or Back. What has its phase already is left as it is. --plan names the file, as YAML: adoptions, with name,
phase, layout, table, namespace, topic, columns, slot and publication as "dispatcher adopt shadow" takes them, and
removed, names of which what is in the shadow goes back, and what is cut over stays so. One that fails keeps no
other back. At the end the counts, as a JSON object, are in the file that TERMINATION_LOG names (by default
/dev/termination-log, if there is one).`,
		Example: `  dispatcher adopt apply -f owner.yaml --plan plan.yaml`,
		RunE: work(func(cmd *cobra.Command) error {
			p, err := readPlan(planFile)
			if err != nil {
				return err
			}
			return withDatabase(cmd, file, func(ctx context.Context, conn *pgx.Conn, cfg config.Config) error {
				reached, err := applyPlan(ctx, conn, cfg.Database.Schema, p, cmd.OutOrStdout())
				if err != nil {
					return err
				}
				text, err := json.Marshal(reached)
				if err != nil {
					return fmt.Errorf("write the counts: %w", err)
				}
				writeTerminationMessage(string(text))
				return nil
			})
		}),
	}
	fileFlag(cmd, &file)
	cmd.Flags().StringVar(&planFile, "plan", "", "the file with the adoptions (required)")
	if err := cmd.MarkFlagRequired("plan"); err != nil {
		panic(err) // the flag is there
	}
	return cmd
}

func readPlan(file string) (p adoptPlan, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return p, fmt.Errorf("read the plan: %w; name its file with --plan", err)
	}
	if err := yaml.UnmarshalStrict(text, &p); err != nil {
		return p, refused{fmt.Errorf("plan %s: %w; correct it there", file, err)}
	}
	seen := map[string]bool{}
	for _, a := range p.Adoptions {
		switch {
		case a.Name == "" || seen[a.Name]:
			return p, refused{fmt.Errorf("plan %s: the name %q is missing or there twice; give each adoption its own", file, a.Name)}
		case a.Phase != phaseShadow && a.Phase != phaseCutover && a.Phase != phaseBack:
			return p, refused{fmt.Errorf("plan %s: adoption %s has the phase %q; choose Shadow, Cutover or Back", file, a.Name, a.Phase)}
		}
		seen[a.Name] = true
	}
	return p, nil
}

// applyPlan makes the missing steps, and counts them.
func applyPlan(ctx context.Context, conn *pgx.Conn, schema string, p adoptPlan, out io.Writer) (status.Adoptions, error) {
	states, err := adopt.States(ctx, conn, schema)
	if err != nil {
		return status.Adoptions{}, err
	}
	var failures []error
	do := func(spec adopt.Spec, steps ...adopt.Step) {
		for _, step := range steps {
			done, err := adopt.Apply(ctx, conn, schema, step, spec, adopt.Options{})
			if err != nil {
				failures = append(failures, fmt.Errorf("adoption %s: %w", spec.Name, err))
				return
			}
			if done.Changed {
				fmt.Fprintf(out, "%s: %s done; rows moved %d, returned %d, refused %d\n", spec.Name, step, done.Moved, done.Returned, done.Refused)
				if step == adopt.Back { // it says what stays in the outbox
					fmt.Fprintln(out, spec.Name+": "+done.Next)
				}
			}
		}
	}
	for _, a := range p.Adoptions {
		spec := adopt.Spec{Name: a.Name, Layout: a.Layout, Table: a.Table, Namespace: a.Namespace, Topic: a.Topic, Columns: a.Columns, Slot: a.Slot, Publication: a.Publication}
		do(spec, missingSteps(a.Phase, states[a.Name])...)
	}
	for _, name := range p.Removed {
		if s := states[name]; s == adopt.Shadow || s == adopt.Returning {
			do(adopt.Spec{Name: name}, adopt.Back)
		}
	}
	if len(failures) > 0 {
		return status.Adoptions{}, errors.Join(failures...)
	}
	return p.count(ctx, conn, schema)
}

// count counts each of the plan's adoptions by itself.
func (p adoptPlan) count(ctx context.Context, conn *pgx.Conn, schema string) (status.Adoptions, error) {
	names := slices.Clone(p.Removed)
	for _, a := range p.Adoptions {
		names = append(names, a.Name)
	}
	var there []adopt.Status
	var failures []error
	for _, name := range names {
		counted, err := adopt.Read(ctx, conn, schema, name)
		if err != nil {
			failures = append(failures, fmt.Errorf("adoption %s: %w", name, err))
		}
		there = append(there, counted...)
	}
	if len(failures) > 0 {
		return status.Adoptions{}, errors.Join(failures...)
	}
	return p.reached(there), nil
}

// missingSteps lead from a state to a phase. The shadow is begun again where it is, which changes nothing when it is as
// the plan says; where the outbox delivers already, that is an error, which says what to do.
func missingSteps(phase string, state adopt.State) []adopt.Step {
	switch {
	case phase == phaseShadow:
		return []adopt.Step{adopt.ToShadow}
	case phase == phaseBack && state == adopt.None, phase == phaseCutover && state == adopt.Live:
		return nil
	case phase == phaseBack:
		return []adopt.Step{adopt.Back}
	case state == adopt.Returning:
		return []adopt.Step{adopt.Cutover}
	}
	return []adopt.Step{adopt.ToShadow, adopt.Cutover}
}

// reached returns the phases of the plan's adoptions, and of removed ones that still exist.
func (p adoptPlan) reached(there []adopt.Status) status.Adoptions {
	found := map[string]adopt.Status{}
	for _, s := range there {
		found[s.Name] = s
	}
	names := []string{}
	for _, a := range p.Adoptions {
		names = append(names, a.Name)
	}
	for _, name := range p.Removed {
		if _, ok := found[name]; ok {
			names = append(names, name)
		}
	}
	all := status.Adoptions{Adoptions: []status.Adoption{}}
	for _, name := range names {
		s := found[name]
		phase := map[adopt.State]string{adopt.None: phaseBack, adopt.Shadow: phaseShadow, adopt.Live: phaseCutover, adopt.Returning: phaseReturning}[s.State]
		all.Adoptions = append(all.Adoptions, status.Adoption{
			Name: name, Phase: phase, Since: s.Since, Theirs: s.Theirs, Ours: s.Ours, Missing: s.Missing, Extra: s.Extra, Refused: s.Refused,
		})
	}
	return all
}
