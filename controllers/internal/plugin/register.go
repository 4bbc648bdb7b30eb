package plugin

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/registration"
)

const (
	// maxReport bounds a report of verify-consumer, in bytes: it has some kilobytes.
	maxReport = 1 << 20
	// clockSkew is how far the clock of who made a report may be ahead.
	clockSkew = 5 * time.Minute
)

func (p *plugin) registerCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use: "register NAME --report FILE", Short: "Register the evidence that a consumer is idempotent", Args: oneName,
		Long: `Register the report of dispatcher verify-consumer as the evidence of an OutboxConsumer: its digest, its time, how
many checks passed, and which rules the consumer breaks. NAME is that of the OutboxConsumer. A report of broken rules is
registered too, and the command succeeds then: verify-consumer itself says by its exit code what it found.

The report must be whole, and about events of a type that the OutboxConsumer registers; one that is older than the
evidence that is there is refused. The role outboxconsumers-verify, which is for pipelines,
may do this.`,
		Example: `  dispatcher verify-consumer --url http://localhost:8080/events --type OrderPlaced --probe-command … --output json > report.json
  kubectl outbox register billing --report report.json --namespace shop`,
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := readReport(cmd.InOrStdin(), file)
			if err != nil {
				return err
			}
			evidence, err := newEvidence(text, p.Now())
			if err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
			t, err := p.target()
			if err != nil {
				return err
			}
			if err := t.register(cmd.Context(), args[0], evidence); err != nil {
				return err
			}
			broken := "no rule broken"
			if len(evidence.BrokenRules) > 0 {
				broken = "broken: " + strings.Join(evidence.BrokenRules, ", ")
			}
			fmt.Fprintf(cmd.OutOrStdout(), "outboxconsumer %s/%s: %d of %d checks passed at %s, %s\n", t.namespace, args[0],
				evidence.Passed, evidence.Checks, evidence.VerifiedAt.UTC().Format(time.RFC3339), broken)
			return nil
		},
	}
	cmd.Flags().StringVar(&file, "report", "", "the file that verify-consumer --output json has written, or - for standard input (required)")
	return cmd
}

func readReport(in io.Reader, file string) ([]byte, error) {
	switch file {
	case "":
		return nil, errors.New("no --report; give it the file that `dispatcher verify-consumer --output json` has written")
	case "-":
	default:
		f, err := os.Open(file)
		if err != nil {
			return nil, fmt.Errorf("read the report: %w", err)
		}
		defer f.Close()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, maxReport+1))
	if err != nil {
		return nil, fmt.Errorf("read the report: %w", err)
	}
	if len(text) > maxReport {
		return nil, fmt.Errorf("the report has more than %d bytes, which none of verify-consumer has; give its file", maxReport)
	}
	return text, nil
}

// newEvidence is what a report, as JSON or YAML, says.
func newEvidence(text []byte, now time.Time) (*v1alpha1.ConsumerEvidence, error) {
	var r status.Consumer
	if err := yaml.UnmarshalStrict(bytes.TrimSpace(text), &r); err != nil {
		return nil, fmt.Errorf("it is not a report of `dispatcher verify-consumer --output json`: %w", err)
	}
	switch {
	case len(r.Checks) == 0 || r.At.IsZero() || r.Type == "":
		return nil, errors.New("it is not a report of `dispatcher verify-consumer --output json`: it has no checks, type or time; give its file")
	case !r.Finished:
		return nil, errors.New("its checks were not finished, so it proves nothing; run verify-consumer again")
	case r.At.After(now.Add(clockSkew)):
		return nil, fmt.Errorf("it is of %s, which is yet to come; correct the clock, and run verify-consumer again", r.At.Format(time.RFC3339))
	case r.Count(status.ConsumerBroken) > 0 && len(r.BrokenRules) == 0:
		return nil, errors.New("it has broken checks, and no rule that is broken; give it as verify-consumer has written it")
	}
	var leftOut []string
	for _, c := range r.Checks {
		if c.Outcome == status.ConsumerNotRun && c.Optional {
			leftOut = append(leftOut, c.Title())
		}
	}
	return &v1alpha1.ConsumerEvidence{
		VerifiedAt: metav1.NewTime(r.At.Truncate(time.Second)), Digest: fmt.Sprintf("sha256:%x", sha256.Sum256(text)), EventType: r.Type,
		Checks: int32(len(r.Checks)), Passed: int32(r.Count(status.ConsumerPassed)), Uncounted: int32(r.Count(status.ConsumerPartly)),
		BrokenRules: r.BrokenRules, NotTried: r.NotTried, LeftOut: leftOut,
	}, nil
}

// register puts the evidence into the spec, whose other fields are the team's.
func (t *target) register(ctx context.Context, name string, evidence *v1alpha1.ConsumerEvidence) error {
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		o := &v1alpha1.OutboxConsumer{}
		if err := t.Get(ctx, client.ObjectKey{Namespace: t.namespace, Name: name}, o); err != nil {
			return err
		}
		known := o.Spec.Evidence
		switch {
		case !registration.Handles(o, evidence.EventType):
			return fmt.Errorf("the report is about events of type %s, which spec.eventTypes of the OutboxConsumer %s/%s does not have; give verify-consumer one of its types with --type, or register the type", evidence.EventType, t.namespace, name)
		case known != nil && evidence.VerifiedAt.Before(&known.VerifiedAt):
			return fmt.Errorf("the report is of %s, and one of %s is registered already; give the newest", evidence.VerifiedAt.UTC().Format(time.RFC3339), known.VerifiedAt.UTC().Format(time.RFC3339))
		}
		before := o.DeepCopy()
		o.Spec.Evidence = evidence
		return t.Patch(ctx, o, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner(manager))
	})
	switch {
	case meta.IsNoMatchError(err):
		return fmt.Errorf("this cluster has no OutboxConsumers: %w; upgrade the operator and its definitions", err)
	case apierrors.IsNotFound(err):
		return fmt.Errorf("no OutboxConsumer %s in the namespace %s: `kubectl get outboxconsumers -A` lists them all; set --namespace, or create it first", name, t.namespace)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w; request the role outboxconsumers-verify in this namespace", err)
	}
	return err
}
