package plugin

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters/deadcmd"
)

// unseenLooks is how many looks a command waits for the operator before it says so.
const unseenLooks = 10

// reportedWithin is how long after the end of a replay its status says so, at most.
const reportedWithin = time.Minute

// follower writes the progress of a DeadLetterReplay.
type follower struct {
	*plugin
	*target
	out  io.Writer
	wait bool
	// dispatcher is the one whose dead letters they are.
	dispatcher string
	last       string
}

// follow returns at the end of the replay, with the object as it is then. It returns an error when the replay failed, was
// stopped or removed, or when the command was interrupted.
func (f *follower) follow(ctx context.Context, dlr *v1alpha1.DeadLetterReplay) error {
	key := client.ObjectKeyFromObject(dlr)
	for looks := 0; ; looks++ {
		looked := time.Now()
		f.write(dlr, looks)
		if ended(dlr, f.wait) {
			return f.endError(dlr)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the command was interrupted, and %s continues: `kubectl outbox dead operations %s%s` shows its progress, `kubectl outbox dead stop %[2]s %[1]s%[3]s` stops it", key.Name, f.dispatcher, f.here(key.Namespace))
		case <-time.After(f.Every):
		}
		switch err := f.Get(ctx, key, dlr); {
		case apierrors.IsNotFound(err):
			return f.goneError(dlr, time.Since(looked))
		case err != nil && ctx.Err() == nil:
			return fmt.Errorf("read the DeadLetterReplay %s: %w; it continues, and `kubectl outbox dead operations %s%s` shows its progress", key, err, f.dispatcher, f.here(key.Namespace))
		}
	}
}

// write writes the progress when it differs from the last line.
func (f *follower) write(dlr *v1alpha1.DeadLetterReplay, looks int) {
	text := progress(dlr)
	if looks >= unseenLooks && dlr.Status.ObservedGeneration < dlr.Generation {
		text = "the operator has not seen it yet; see that it runs, and serves this namespace"
	}
	line := fmt.Sprintf("%s %s: %s", strings.ToLower(string(dlr.Spec.Action)), dlr.Name, text)
	if line == f.last {
		return
	}
	f.last = line
	_, _ = fmt.Fprintln(f.out, line) // when who reads it has gone, the exit code still says how it ended
}

// goneError is the error for an object that does not exist any more; dlr is what was last seen of it, that long ago. With a
// time to live the operator removes it after its end; one that is deleted earlier was seen while it stopped, or had a
// longer time to live.
func (f *follower) goneError(dlr *v1alpha1.DeadLetterReplay, ago time.Duration) error {
	name, ttl := dlr.Namespace+"/"+dlr.Name, dlr.Spec.TTLAfterFinished
	if ttl != nil && dlr.DeletionTimestamp == nil && ttl.D() <= ago+reportedWithin {
		return fmt.Errorf("the DeadLetterReplay %s was removed after it ended, since its ttlAfterFinished is %s; seen last: %s; see what is dead now with `kubectl outbox dead groups %s%s`, and keep the next one longer",
			name, ttl, progress(dlr), f.dispatcher, f.here(dlr.Namespace))
	}
	return fmt.Errorf("the DeadLetterReplay %s was deleted, which stops it; seen last: %s; what it has put back stays so: see `kubectl outbox dead groups %s%s`", name, progress(dlr), f.dispatcher, f.here(dlr.Namespace))
}

// endError is the error of a bad end.
func (f *follower) endError(dlr *v1alpha1.DeadLetterReplay) error {
	if p := dlr.Status.Progress; p != nil && p.Stopped != "" {
		return fmt.Errorf("%s was stopped: %s; see why events are dead again, with `kubectl outbox dead groups %s%s`, before you replay the rest", dlr.Name, p.Stopped, f.dispatcher, f.here(dlr.Namespace))
	}
	if c := meta.FindStatusCondition(dlr.Status.Conditions, v1alpha1.StalledCondition); stalled(dlr) {
		return fmt.Errorf("%s cannot continue: %s: %s; `kubectl outbox dead stop %s %[1]s%[5]s` gives it up", dlr.Name, c.Reason, c.Message, f.dispatcher, f.here(dlr.Namespace))
	}
	return nil
}

func stalled(dlr *v1alpha1.DeadLetterReplay) bool {
	return meta.IsStatusConditionTrue(dlr.Status.Conditions, v1alpha1.StalledCondition)
}

// ended reports whether there is nothing more to wait for: it has stopped, or each dead letter had its turn, or with wait its outcome.
func ended(dlr *v1alpha1.DeadLetterReplay, wait bool) bool {
	s := dlr.Status
	return stalled(dlr) || meta.IsStatusConditionTrue(s.Conditions, v1alpha1.CompleteCondition) ||
		s.Progress != nil && (s.Stopped != "" || !wait && s.Left() <= 0)
}

// progress is how far it is, in one line.
func progress(dlr *v1alpha1.DeadLetterReplay) string {
	s := dlr.Status
	if s.Progress == nil {
		if c := meta.FindStatusCondition(s.Conditions, v1alpha1.CompleteCondition); c != nil {
			return c.Reason + ": " + c.Message
		}
		return "waits for the operator"
	}
	action := strings.ToLower(string(dlr.Spec.Action))
	text := s.Line(action)
	if dlr.Spec.DryRun {
		text = strings.Join(append([]string{fmt.Sprintf("would %s %d of %d", action, s.Left(), s.Matched)}, s.Outcomes("", "skipped: %s")...), ", ")
	}
	if c := meta.FindStatusCondition(s.Conditions, v1alpha1.CompleteCondition); c != nil && c.Reason == v1alpha1.ReasonWaiting {
		text += "; " + c.Message
	}
	return text
}

// objectWriter writes an object in a format; text is nothing, because progress was written, or what a manifest is.
func objectWriter(format string, manifest bool) (func(io.Writer, *v1alpha1.DeadLetterReplay) error, error) {
	if format == "text" && manifest {
		format = "yaml"
	}
	return func(out io.Writer, dlr *v1alpha1.DeadLetterReplay) (err error) {
		var text []byte
		switch format {
		case "json", "yaml":
			text, err = marshal(format, named(dlr))
		}
		if err == nil {
			_, err = out.Write(text)
		}
		return err
	}, oneOf("output", format, "text", "json", "yaml")
}

// named is an object as people and scripts read it.
func named(dlr *v1alpha1.DeadLetterReplay) *v1alpha1.DeadLetterReplay {
	dlr = dlr.DeepCopy()
	dlr.APIVersion, dlr.Kind, dlr.ManagedFields = v1alpha1.GroupVersion.String(), "DeadLetterReplay", nil
	return dlr
}

// marshal writes as JSON or YAML.
func marshal(format string, v any) ([]byte, error) {
	if format == "yaml" {
		return spec.YAML(v)
	}
	return deadcmd.JSON(v)
}

func oneOf(flag, value string, choices ...string) error {
	for _, c := range choices {
		if value == c {
			return nil
		}
	}
	return fmt.Errorf("--%s is %q; choose %s or %s", flag, value, strings.Join(choices[:len(choices)-1], ", "), choices[len(choices)-1])
}
