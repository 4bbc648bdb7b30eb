package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/rand"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
)

// What --against can be.
const (
	againstRunning = "running"
	againstStatus  = "status"
)

// ExitError is the end of a command with an exit code of its own.
type ExitError struct {
	Code int
	Err  error
}

// Error is the error's.
func (e *ExitError) Error() string { return e.Err.Error() }

// Unwrap returns the error.
func (e *ExitError) Unwrap() error { return e.Err }

// exitRefused is the code of a configuration that is refused, as the dispatcher has it.
const exitRefused = 78

// tried is what to try, and how.
type tried struct {
	file, against, image string
	timeout              time.Duration
	// args are those of `dispatcher try`, which checks them.
	args []string
}

func (p *plugin) tryCommand() *cobra.Command {
	var t tried
	var last int
	var since time.Duration
	var topics []string
	var output string
	cmd := &cobra.Command{
		Use: "try -f FILE [NAME]", Short: "Put past events through a changed OutboxDispatcher, and say what would come out otherwise",
		Long: `Put the newest rows of the outbox through the validation, transformations and routes of a changed
OutboxDispatcher, and say how many come out as with what runs, and what the others would be: dead, paused, failed,
notTaken, moved, changed or sent (see dispatcher try). Nothing is sent, and nothing of the OutboxDispatcher changes.

The file is a manifest, also with other documents: ConfigMaps in it that its schemas name are tried too. NAME chooses
one of several OutboxDispatchers. The API server fills in defaults and refuses what it would refuse; then a Job with
the image of the running Deployment runs dispatcher try in the namespace, with the Secrets that the manifest names.
Its ConfigMap and it are deleted at the end, and on Ctrl-C.

It needs the rights to get outboxdispatchers and to update them, or create those that are new (which is only used for a
dry run), to get outboxes, deployments, configmaps and jobs, to create and delete jobs and configmaps, to list pods and
events, and to get pods/log: the roles outboxdispatchers-edit, outboxes-view and edit have them.

Exit codes: 0 for no difference, 3 for some, 78 when the manifest or a configuration is refused, 1 for any other failure,
such as that there is no row to try.`,
		Example: `  kubectl outbox try -f orders-new.yaml --last 1000
  kustomize build overlays/shop | kubectl outbox try -f - orders --since 24h --output json`,
		Args: cobra.MaximumNArgs(1), ValidArgsFunction: p.completeOne,
		RunE: func(cmd *cobra.Command, args []string) error {
			t.args = []string{"--last", strconv.Itoa(last), "--output", output}
			if since != 0 {
				t.args = append(t.args, "--since", since.String())
			}
			for _, topic := range topics {
				t.args = append(t.args, "--topic", topic)
			}
			return p.try(cmd, t, strings.Join(args, ""))
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&t.file, "filename", "f", "", "the manifest; - is standard input (required)")
	flags.StringVar(&t.against, "against", againstRunning, "running: what the Deployment runs; status: what the rows' status says, which knows no destinations")
	flags.StringVar(&t.image, "image", "", "the dispatcher's image (default: that of the running Deployment)")
	flags.DurationVar(&t.timeout, "timeout", 5*time.Minute, "how long the Job may take")
	flags.IntVar(&last, "last", 1000, "how many rows to try at most, the newest first, up to 100000")
	flags.DurationVar(&since, "since", 0, "only rows that were created so long ago at most, such as 24h (default: any time)")
	flags.StringSliceVar(&topics, "topic", nil, "only rows of this topic; may be repeated (default: the topics of both configurations)")
	flags.StringVarP(&output, "output", "o", "table", "table, json or yaml")
	fixed := func(flag string, words ...string) error {
		return cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
	}
	if err := errors.Join(cmd.MarkFlagRequired("filename"), cmd.MarkFlagFilename("filename", "yaml", "yml", "json"),
		fixed("against", againstRunning, againstStatus), fixed("output", "table", "json", "yaml")); err != nil {
		panic(err) // the flags are there
	}
	return cmd
}

// try runs the Job of what the file says, and ends as it ends.
func (p *plugin) try(cmd *cobra.Command, o tried, name string) error {
	if err := oneOf("against", o.against, againstRunning, againstStatus); err != nil {
		return err
	}
	if o.timeout < time.Second {
		return fmt.Errorf("--timeout is %s; set it to a time such as 5m", o.timeout)
	}
	ctx := cmd.Context()
	t, err := p.target()
	if err != nil {
		return err
	}
	m, err := readManifest(cmd.InOrStdin(), o.file, name)
	if err != nil {
		return err
	}
	if err := t.setNamespace(m, *p.flags.Namespace); err != nil {
		return err
	}
	attempt, platform, err := t.attempt(ctx, m, o)
	if err != nil {
		return err
	}
	return (&tryJob{plugin: p, target: t, attempt: attempt, out: cmd.OutOrStdout(), errOut: cmd.ErrOrStderr()}).run(ctx, platform)
}

// attempt is what to try, with what it is compared with, and what its pod has of the one that runs.
func (t *target) attempt(ctx context.Context, m *manifest, o tried) (attempt desired.Try, p desired.Platform, err error) {
	attempt, p = desired.Try{Schemas: m.schemas, Args: o.args, Deadline: o.timeout}, desired.Platform{Image: o.image}
	if attempt.OutboxDispatcher, err = t.dryRunApply(ctx, m.dispatcher); err != nil {
		return attempt, p, err
	}
	if attempt.Outbox, err = t.outbox(ctx, attempt.OutboxDispatcher); err != nil {
		return attempt, p, err
	}
	name := attempt.OutboxDispatcher.Name
	running, err := t.running(ctx, attempt.OutboxDispatcher)
	switch {
	case err != nil:
		return attempt, p, err
	case running == nil && (o.against == againstRunning || o.image == ""):
		return attempt, p, fmt.Errorf("no OutboxDispatcher %s/%s runs here, to compare with and to take the image from; correct --namespace, "+
			"or compare with the rows' status: --against status --image IMAGE, which is the image of the operator's dispatchers", t.namespace, name)
	case running != nil:
		pod := &running.Spec.Template.Spec
		p.Image = cmp.Or(p.Image, desired.Image(pod))
		for _, secret := range pod.ImagePullSecrets {
			p.ImagePullSecrets = append(p.ImagePullSecrets, secret.Name)
		}
	}
	if attempt.Running = running; o.against == againstRunning {
		if attempt.RunningConfig, err = t.runningConfig(ctx, running); err != nil {
			return attempt, p, err
		}
	}
	attempt.Name = name + "-try-" + rand.String(5)
	return attempt, p, nil
}

// dryRunApply has the API server look at the manifest as if it were applied: with defaults, and with its refusals.
func (t *target) dryRunApply(ctx context.Context, manifest *unstructured.Unstructured) (*v1alpha1.OutboxDispatcher, error) {
	obj := manifest.DeepCopy()
	obj.SetManagedFields(nil)
	var old v1alpha1.OutboxDispatcher
	err := t.Get(ctx, client.ObjectKeyFromObject(obj), &old)
	switch {
	case err == nil:
		// The whole object is replaced: to apply it would keep what others have applied, such as a rule that the
		// manifest has no more.
		obj.SetUID(old.UID)
		obj.SetResourceVersion(old.ResourceVersion)
		err = t.Update(ctx, obj, client.DryRunAll, client.FieldValidation(metav1.FieldValidationStrict), client.FieldOwner(manager))
	case apierrors.IsNotFound(err):
		obj.SetUID("")
		obj.SetResourceVersion("")
		err = t.Create(ctx, obj, client.DryRunAll, client.FieldValidation(metav1.FieldValidationStrict), client.FieldOwner(manager))
	}
	if apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) {
		return nil, &ExitError{exitRefused, fmt.Errorf("the manifest is refused: %w", err)}
	}
	if err != nil {
		return nil, refusedTry(fmt.Errorf("check the manifest of %s/%s: %w", obj.GetNamespace(), obj.GetName(), err))
	}
	return typed(obj)
}

// outbox is the Outbox that is referred to, nil for none.
func (t *target) outbox(ctx context.Context, obd *v1alpha1.OutboxDispatcher) (*v1alpha1.Outbox, error) {
	ref := obd.Spec.OutboxRef
	if ref == nil {
		return nil, nil
	}
	var outbox v1alpha1.Outbox
	err := t.Get(ctx, client.ObjectKey{Namespace: obd.Namespace, Name: ref.Name}, &outbox)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("no Outbox %s, which spec.outboxRef of the manifest names, is in the namespace %s; correct the name, or create it first", ref.Name, obd.Namespace)
	}
	if err != nil {
		return nil, refusedTry(fmt.Errorf("read the Outbox %s/%s: %w", obd.Namespace, ref.Name, err))
	}
	return &outbox, nil
}

// running is the Deployment of the OutboxDispatcher, nil when there is none. One that is not there has another UID
// than what a Deployment is controlled by.
func (t *target) running(ctx context.Context, obd *v1alpha1.OutboxDispatcher) (*appsv1.Deployment, error) {
	var d appsv1.Deployment
	err := t.Get(ctx, client.ObjectKey{Namespace: obd.Namespace, Name: desired.Name(obd)}, &d)
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, refusedTry(fmt.Errorf("read the Deployment %s/%s: %w", obd.Namespace, desired.Name(obd), err))
	}
	if err != nil || !metav1.IsControlledBy(&d, obd) {
		return nil, nil
	}
	return &d, nil
}

// runningConfig is the file that the Deployment's pods load.
func (t *target) runningConfig(ctx context.Context, d *appsv1.Deployment) (*corev1.ConfigMap, error) {
	names := desired.ConfigNames(&d.Spec.Template.Spec)
	if len(names) != 1 {
		return nil, fmt.Errorf("the Deployment %s/%s loads no ConfigMap of the operator's; correct spec.pods.template, or add --against status", d.Namespace, d.Name)
	}
	var files corev1.ConfigMap
	if err := t.Get(ctx, client.ObjectKey{Namespace: d.Namespace, Name: names[0]}, &files); err != nil {
		return nil, refusedTry(fmt.Errorf("read what the Deployment %s loads: %w", d.Name, err))
	}
	return &files, nil
}

// refusedTry says what to do about a missing right.
func refusedTry(err error) error {
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("%w; request the roles outboxdispatchers-edit, outboxes-view and edit in this namespace, or the rights that `kubectl outbox try --help` lists", err)
	}
	return err
}
