package desired

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/spec/rules"
	"github.com/outbox-operator/outbox-operator/api/spec/schema"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// object is one of a file, with the defaults.
type object struct {
	Kind     string
	Metadata struct{ Name, Namespace, UID string }
	Spec     map[string]any
}

// objectsOf are the objects of this project in a file, each valid.
func objectsOf(t *testing.T, text string) (all []object) {
	t.Helper()
	for document := range strings.SplitSeq("\n"+text, "\n---\n") {
		var o object
		made, err := schema.Decode([]byte(document))
		need.OK(t, err)
		if members, ok := made.(map[string]any); !ok || members["apiVersion"] != v1alpha1.GroupVersion.String() {
			continue
		}
		convert(t, made, &o)
		if problems := rules.Check(schema.Of(o.Kind), made); problems != nil {
			t.Fatalf("%s %s is refused: %v\n%s", o.Kind, o.Metadata.Name, problems, document)
		}
		convert(t, made, &o)
		all = append(all, o)
	}
	return all
}

func convert(t *testing.T, from, to any) {
	t.Helper()
	text, err := json.Marshal(from)
	if err == nil {
		err = json.Unmarshal(text, to)
	}
	need.OK(t, err)
}

// settings returns what a process makes of the objects, and the files that it reads, as package document of the dispatcher does.
func settings(t *testing.T, all []object, login spec.Login) (spec.Config, []string) {
	t.Helper()
	var from spec.Objects
	for _, o := range all {
		from.Name = o.Metadata.Namespace + "/" + o.Metadata.Name
		made := schema.Of(o.Kind).Compact(map[string]any{"apiVersion": v1alpha1.GroupVersion.String(), "kind": o.Kind, "metadata": map[string]any{"name": "a"}, "spec": o.Spec}).(map[string]any)
		rules.Check(schema.Of(o.Kind), made) // sets the defaults
		if o.Kind == kindOutbox {
			from.Outbox = &spec.Outbox{}
			convert(t, made["spec"], from.Outbox)
		} else {
			from.Dispatcher = &spec.Dispatcher{}
			convert(t, made["spec"], from.Dispatcher)
		}
	}
	c, refs := from.Config(login, func(r spec.Ref) string { return secretsDir + "/" + r.Path() })
	var paths []string
	for _, r := range refs {
		paths = append(paths, r.Path())
	}
	slices.Sort(paths)
	c.Dispatcher.Database, c.Replicas, c.State, c.Pods = nil, nil, "", spec.Pods{Log: c.Pods.Log} // the operator's; the state has a file of its own
	return c, slices.Compact(paths)
}

// mounted are the files of a pod's Secrets and ConfigMaps.
func mounted(pod *corev1ac.PodTemplateSpecApplyConfiguration) (paths []string) {
	for _, volume := range pod.Spec.Volumes {
		if volume.Projected == nil {
			continue
		}
		for _, source := range volume.Projected.Sources {
			if source.Secret != nil {
				paths = append(paths, *source.Secret.Items[0].Path)
			} else {
				paths = append(paths, *source.ConfigMap.Items[0].Path)
			}
		}
	}
	slices.Sort(paths)
	return paths
}

// samples are the files of config/samples.
func samples(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	files, err := filepath.Glob("../../../config/samples/*.yaml")
	need.Must(t, err == nil && len(files) != 0, "no samples: %v", err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		need.OK(t, err)
		all[filepath.Base(file)] = string(text)
	}
	return all
}

// Pods make the settings of their file that the whole objects say, and find each key there that it names. So do migrations,
// for each of the logins.
//
// CONTRACT: C-60, C-61, C-100
func TestPodsReadWhatTheObjectsSay(t *testing.T) {
	pods, jobs := 0, 0
	for name, text := range samples(t) {
		objects := objectsOf(t, text)
		var outbox *v1alpha1.Outbox
		for _, o := range objects {
			if o.Kind != kindOutbox {
				continue
			}
			outbox = &v1alpha1.Outbox{}
			convert(t, o, outbox)
			outbox.Name, outbox.Namespace = o.Metadata.Name, "shop"
			m, err := NewOutboxMigration(outbox, flags)
			need.OK(t, err)
			if m == nil {
				continue
			}
			jobs++
			file := objectsOf(t, OutboxConfigMap(outbox).Data[keyConfig])
			var read, needed []string
			for _, login := range []spec.Login{spec.LoginMigration, spec.LoginDispatcher, spec.LoginReplay} {
				is, paths := settings(t, file, login)
				want, _ := settings(t, []object{o}, login)
				need.That(t, reflect.DeepEqual(is.Database, want.Database) && reflect.DeepEqual(is.Journal, want.Journal) && is.Notify == nil && is.Name == "shop/"+outbox.Name,
					"%s: a migration with login %d reads\n%+v\nwant\n%+v", name, login, is, want)
				read = append(read, paths...)
				if login != spec.LoginReplay {
					needed = append(needed, paths...)
				}
			}
			for _, source := range m.template.Spec.Volumes[1].Projected.Sources {
				need.That(t, source.Secret == nil || slices.Contains(needed, *source.Secret.Items[0].Path) == (source.Secret.Optional == nil), "%s: a migration waits for the keys %v, and mounts %+v", name, needed, source.Secret)
			}
			slices.Sort(read)
			need.WantAll(t, slices.Compact(read), "%s: mounted for the migration are %v, want %v", mounted(m.template), name)
		}
		for _, o := range objects {
			if o.Kind != kindOutboxDispatcher {
				continue
			}
			obd := &v1alpha1.OutboxDispatcher{}
			convert(t, o, obd)
			obd.Name, obd.Namespace, o.Metadata.Namespace = o.Metadata.Name, "shop", "shop"
			whole := []object{o}
			if obd.Spec.OutboxRef != nil && outbox == nil {
				outbox = whatever()
			}
			if obd.Spec.OutboxRef != nil {
				whole = []object{{Kind: kindOutbox, Spec: members(outbox.Spec)}, o}
			}
			pods++
			d, err := deployment(obd, outbox, flags)
			need.OK(t, err)
			is, paths := settings(t, objectsOf(t, ConfigMap(obd, outbox).Data[keyConfig]), spec.LoginDispatcher)
			want, _ := settings(t, whole, spec.LoginDispatcher)
			is.Name = want.Name
			need.That(t, reflect.DeepEqual(is, want), "%s: the pods of %s read\n%+v\nwant\n%+v", name, obd.Name, is, want)
			kind := obd.Spec.Sink.Kind()
			need.That(t, o.Spec["sink"].(map[string]any)[kind] != nil, "%s: the kind of the sink is %q", name, kind)
			need.WantAll(t, paths, "%s: mounted are %v, and the file names %v", mounted(d.Spec.Template), name)
		}
	}
	need.That(t, pods >= 20 && jobs >= 3, "tried %d dispatchers and %d migrations", pods, jobs)
}

// alternatives are fields that need no sample: another one stands for them, or they are of another sink than http.
var alternatives = regexp.MustCompile(`\.(secretKeys|usernameKey|caConfigMapRef|caSecretRef|migrationSecretRef\.key|replayLogin\.user)\b|\.sink\.(kafka|nats|postgres|pubSub|rabbitmq|redis|serviceBus|sns|sqs)\.`)

// Each field of a dispatcher and of an Outbox is set by a sample, so that the test above tries it.
func TestSamplesSetEveryField(t *testing.T) {
	set := map[string]bool{}
	for _, text := range samples(t) {
		for _, o := range objectsOf(t, text) { // which has defaults too
			flatten(o.Kind, o.Spec, set)
		}
	}
	missing := map[string]bool{}
	for _, kind := range []string{kindOutboxDispatcher, kindOutbox} {
		fieldsOf(kind, schema.Of(kind).Properties["spec"], missing)
	}
	maps.DeleteFunc(missing, func(path string, _ bool) bool {
		return set[path] || alternatives.MatchString(path)
	})
	for _, path := range slices.Sorted(maps.Keys(missing)) {
		t.Errorf("config/samples has no %s", path)
	}
}

// flatten notes the paths of a value.
func flatten(path string, v any, set map[string]bool) {
	set[path] = true
	switch v := v.(type) {
	case map[string]any:
		for name, member := range v {
			flatten(path+"."+name, member, set)
		}
	case []any:
		for _, item := range v {
			flatten(path, item, set)
		}
	}
}

// fieldsOf notes the paths of a schema's fields.
func fieldsOf(path string, s *schema.Schema, fields map[string]bool) {
	fields[path] = true
	for name, of := range s.Properties {
		fieldsOf(path+"."+name, of, fields)
	}
	if s.Items != nil {
		fieldsOf(path, s.Items, fields)
	}
}

// A file has no value that the API sets by default, and an order without a meaning is the same one.
func TestFilesAreCompact(t *testing.T) {
	obd := minimal()
	obd.Spec.Delivery.BatchSize = 2000
	const want = `apiVersion: outbox.dev/v1alpha1
kind: OutboxDispatcher
metadata:
  name: orders
  namespace: shop
spec:
  database:
    secretRef:
      name: orders-db
  namespace: shop
  sink:
    log: {}
`
	need.Want(t, want, "got\n%s\nwant\n%s", dispatcherFile(obd, nil))
}

// Two keys that would be one file are refused, and a key that several fields name is mounted once.
//
// CONTRACT: C-101
func TestKeysAreMountedOnce(t *testing.T) {
	obd := full()
	obd.Spec.Sink.TLS = &spec.TLS{CASecretRef: &spec.SecretRef{Name: "orders-db-ca", Key: "root.pem"}}
	need.Want(t, nil, "%v", need.Err(deployment(obd, whatever(), flags)))
	obd.Spec.Sink.TLS = &spec.TLS{CAConfigMapRef: &spec.ConfigMapRef{Name: "orders-db-ca", Key: "root.pem"}}
	const want = `spec.sink.tls.caConfigMapRef cannot be used: Outbox main: spec.tls.caSecretRef names a Secret, and this a ConfigMap, of the same name "orders-db-ca" with the same key "root.pem"`
	if _, err := deployment(obd, whatever(), flags); err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("%v\nwant %s", err, want)
	}
}

// Pods read each text as it is, also one with characters that YAML refuses or folds. All that the CRDs admit renders.
func TestFilesOfAnyCharacters(t *testing.T) {
	const odd = "CHG-812 \u0096 fix\u0085 \u007f\ufeff\ufffe\uffff\u2028 <end>\n---\nend"
	r := replayed()
	r.Spec.Reason, r.Spec.Selector.Topics = odd, []string{odd}
	o := r.read(t)
	need.That(t, o.Reason == odd && slices.Equal(o.Selector.Topics, []string{odd}), "the Job of a replay reads %q of %q", o.Reason, o.Selector.Topics)
	obd := minimal()
	obd.Spec.Topics = []string{odd}
	c, _ := settings(t, objectsOf(t, dispatcherFile(obd, nil)), spec.LoginDispatcher)
	need.That(t, slices.Equal(c.Topics, []string{odd}), "a dispatcher reads %q", c.Topics)
}

const replayUID = "5f0c6f6e-5a0c-4a35-9d5b-1d6c8d0f2a11"

// replayed is a replay that says everything, of an Outbox.
func replayed() Replay {
	return Replay{
		DeadLetterReplay: &v1alpha1.DeadLetterReplay{
			ObjectMeta: metav1.ObjectMeta{Name: "chg-812", Namespace: "shop", UID: replayUID},
			Spec: spec.Replay{
				OutboxRef: &spec.OutboxRef{Name: "orders"}, Namespace: "shop-events", Action: spec.ActionReplay, Reason: "CHG-812", RequestedBy: "ada",
				Selector: spec.DeadLetterSelector{
					Group: "7f3a9c21", Reason: "PermanentFailure", Topics: []string{"a", "b"}, Type: "OrderPlaced", Aggregate: "order/7", Tenant: replayUID, IDs: []string{replayUID, "7"}, ErrorContains: "422",
					Since: 1000, Until: 2000,
				},
				Rate: 500, Canary: 10, AbortAt: 20, Expires: spec.Duration(time.Hour), Limit: 7, DryRun: true,
			},
		},
		Outbox: &v1alpha1.Outbox{ObjectMeta: metav1.ObjectMeta{Name: "orders"}, Spec: spec.Outbox{
			SecretRef: spec.SecretRef{Name: "orders-db"}, Schema: "outbox",
			ReplayLogin: &spec.ReplayLogin{SecretRef: &spec.SecretRef{Name: "orders-replay"}},
		}},
	}
}

// read is the object of the Job's file. The Job finds the keys that it names.
func (r Replay) read(t *testing.T) (s spec.Replay) {
	t.Helper()
	all := objectsOf(t, r.ConfigMap().Data[keyConfig])
	need.Must(t, len(all) == 2 && all[0].Kind == kindDeadLetterReplay && all[0].Metadata.UID == replayUID && all[1].Metadata.Name == r.Outbox.Name, "the file has %+v", all)
	job, err := r.Job(flags)
	need.OK(t, err)
	if _, paths := settings(t, all[1:], spec.LoginReplay); !slices.Equal(mounted(job.Spec.Template), paths) {
		t.Errorf("mounted are %v, and the file names %v", mounted(job.Spec.Template), paths)
	}
	convert(t, all[0].Spec, &s)
	return s
}

// The Job reads the object, and no login but its own.
//
// CONTRACT: C-42, C-100
func TestReplayFile(t *testing.T) {
	r := replayed()
	s := r.read(t)
	need.That(t, reflect.DeepEqual(s, r.Spec), "the file has %+v, want %+v", s, r.Spec)
	for _, ref := range r.Refs() {
		need.That(t, ref.Secret == "orders-replay" && ref.Field == "Outbox orders: spec.replayLogin.secretRef", "the Job reads %+v, and it needs no login but its own", ref)
	}
}

// A replay of a dispatcher's dead letters has the dispatcher's namespace, topics, order, account and template.
func TestReplayOfADispatcher(t *testing.T) {
	r := replayed()
	r.Spec.OutboxRef, r.Spec.DispatcherRef, r.Spec.Namespace, r.Spec.Selector = nil, &spec.DispatcherRef{Name: "orders"}, "", spec.DeadLetterSelector{All: true}
	r.Dispatcher = minimal()
	if s := r.read(t); s.Namespace != "shop" || s.OutboxRef.Name != "orders" || !s.Selector.All {
		t.Errorf("without topics the file has %+v", s)
	}
	r.Dispatcher.Spec.Topics = []string{"orders", "bills"}
	r.Dispatcher.Spec.Pods.Template = json.RawMessage(`{"metadata": {"labels": {"team": "shop"}}}`)
	if s := r.read(t); !slices.Equal(s.Selector.Topics, []string{"bills", "orders"}) || s.Selector.All {
		t.Errorf("the file has %+v", s)
	}
	job, err := r.Job(flags)
	need.OK(t, err)
	if pod := job.Spec.Template; pod.Labels["team"] != "shop" || *pod.Spec.ServiceAccountName != "orders-dispatcher" {
		t.Errorf("the pod has the labels %v and runs as %s", pod.Labels, *pod.Spec.ServiceAccountName)
	}
	r.Outbox.Spec.ReplayLogin.PodTemplate = json.RawMessage(`{"spec": {"containers": []}, "metadata": {"labels": {"outbox.dev/replay": "x"}}}`)
	if _, err := r.Job(flags); !errors.Is(err, ErrPodTemplate) || !strings.Contains(err.Error(), "Outbox orders: spec.replayLogin.podTemplate") {
		t.Errorf("a template that takes our labels: %v", err)
	}
}
