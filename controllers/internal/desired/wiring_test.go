package desired

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

// notInTheFile are optional parts of the resource whose presence alone changes nothing in the files of the
// pods, and fields that change no workload, with the reason.
var notInTheFile = map[string]string{
	"outbox.journal":                  "it is in the file of the migration: TestJournalIsTheMigrations",
	"outbox.journal.mode":             "likewise",
	"outbox.journal.retention":        "likewise",
	"pods.serviceAccount":             "it is an object of its own, and in the pod template",
	"pods.serviceAccount.annotations": "likewise",
	"pods.imagePullSecrets":           "it is in the pod template",
	"pods.scaling":                    "it is the operator's own: TestScaling",
	"pods.scaling.mode":               "likewise",
	"pods.scaling.min":                "likewise",
	"pods.scaling.max":                "likewise",
	"pods.scaling.catchUp":            "likewise",
}

// notHere are parts of the resource that are not tried, with the reason.
var notHere = map[string]string{
	"database":           "as a whole it is there, unless there is an Outbox; its fields are tried",
	"outboxRef":          "the reconciler reads the Outbox, whose fields are tried",
	"outbox.replayLogin": "TestReplayFiles",
}

// notInTheResource are fields of the file that no resource sets, with the reason.
var notInTheResource = map[string]string{
	"name":                        "it is the resource's own name: DispatcherName",
	"server.address":              "it is the port of the pods' probes",
	"database.dsn":                "connections are in Secrets, and so in files",
	"sink.postgres.dsn":           "likewise",
	"database.dsnEnv":             "likewise; a container without Kubernetes reads it",
	"state":                       "it is a file of its own, which pods read again: StateConfigMap",
	"stateFile":                   "it is where the pods have that file",
	"database.m10.namespace":      "only the migration's file has it",
	"database.m10.topic":          "likewise",
	"database.m10.publish":        "likewise",
	"database.overview.namespace": "likewise",
	"database.tenants":            "likewise",
	"journal.mode":                "it is in the file of the migration: TestJournalIsTheMigrations",
	"journal.retention":           "likewise",
	"retention.scope":             "it is Outbox for a dispatcher that refers to one: TestScopeOfRetention",
}

// Two values of a field of the resource give two different workloads, and an optional part that is there
// another file than one that is not. Whatever the resource says reaches the pods, and every Secret that
// the file names is mounted.
//
// CONTRACT: C-100
func TestEveryFieldReachesThePods(t *testing.T) {
	inFile := map[string]bool{} // the fields of the file, and whether one of the resource sets them
	paths(reflect.TypeFor[spec.Config](), "", func(path string) { inFile[path] = false })
	leaves := 0
	walk(func(f field) {
		switch {
		case f.notHere():
		case f.optional():
			with, without := f.with(func(v reflect.Value) { present(v) }), f.with(reflect.Value.SetZero)
			same := maps.Equal(filesOf(with), filesOf(without))
			if _, other := notInTheFile[f.path]; same != (other || strings.HasSuffix(f.path, "clientKeySecretRef")) { // it has another key in the same file
				t.Errorf("%s: the file is the same with and without it = %v, want %v", f.path, same, other)
			}
			for _, path := range changed(inFile, with, without) {
				inFile[path] = true
			}
		case f.leaf():
			leaves++
			one, two := f.with(value(1)), f.with(value(2))
			same := workload(t, one) == workload(t, two)
			if _, other := notInTheFile[f.path]; same != other {
				t.Errorf("%s: two values of it make the same workload = %v, want %v", f.path, same, other)
			}
			fields := changed(inFile, one, two)
			for _, path := range fields {
				inFile[path] = true
			}
			path := strings.TrimPrefix(strings.Replace(f.path, "outbox.", "database.", 1), "pods.")
			if _, same := inFile[path]; same && path != "state" && !slices.Equal(fields, []string{path}) {
				t.Errorf("%s: changes %v in the file, want the field of the same name", f.path, fields)
			}
		}
	})
	if leaves < 100 {
		t.Errorf("only %d fields were tried", leaves)
	}
	for path, set := range inFile {
		if _, other := notInTheResource[path]; set == other {
			t.Errorf("%s of the file: a field of the resource sets it = %v, want %v", path, set, !other)
		}
	}
}

// field is a field of the spec.
type field struct {
	path string
	typ  reflect.Type
	// in is the field in a resource, in which all that the field is in is made first.
	in func(objects) reflect.Value
}

// objects are a dispatcher, and the Outbox that it refers to, nil for a database of its own.
type objects struct {
	obd    *v1alpha1.OutboxDispatcher
	outbox *v1alpha1.Outbox
}

// walk visits all fields of a dispatcher, and those of an Outbox by paths that begin with outbox.
func walk(see func(field)) {
	field{"", reflect.TypeFor[v1alpha1.OutboxDispatcherSpec](), func(r objects) reflect.Value { return reflect.ValueOf(&r.obd.Spec).Elem() }}.walk(see)
	field{"outbox", reflect.TypeFor[v1alpha1.OutboxSpec](), func(r objects) reflect.Value { return reflect.ValueOf(&r.outbox.Spec).Elem() }}.walk(see)
}

// notHere reports whether the field, or one that it is in, is in notHere.
func (f field) notHere() bool {
	_, whole := notHere[f.path]
	return whole || strings.HasPrefix(f.path, "outboxRef.") || strings.HasPrefix(f.path, "outbox.replayLogin.")
}

// leaf reports whether a field has a value rather than fields.
func (f field) leaf() bool { return len(f.fields()) == 0 }

// fields are the fields of the struct that f is, points to or lists.
func (f field) fields() []reflect.StructField {
	typ := f.typ
	if f.optional() {
		typ = typ.Elem()
	}
	if typ.Kind() != reflect.Struct || slices.Contains(values, typ) {
		return nil
	}
	return reflect.VisibleFields(typ)
}

// values are the structs that are written as one value.
var values = []reflect.Type{reflect.TypeFor[runtime.RawExtension]()}

// optional reports whether a field points to, or lists, a struct.
func (f field) optional() bool {
	return (f.typ.Kind() == reflect.Pointer || f.typ.Kind() == reflect.Slice) &&
		f.typ.Elem().Kind() == reflect.Struct && !slices.Contains(values, f.typ.Elem())
}

// walk visits f and all that is in it.
func (f field) walk(see func(field)) {
	see(f)
	for i, inner := range f.fields() {
		path := f.path
		if f.typ.Kind() == reflect.Slice {
			path += "[]"
		}
		field{strings.TrimPrefix(path+"."+named(inner), "."), inner.Type, func(r objects) reflect.Value {
			v := f.in(r)
			if f.optional() {
				v = present(v)
			}
			if v.Type() == reflect.TypeFor[v1alpha1.Sink]() && isSinkKind(named(inner)) && v.Field(i).IsNil() {
				v.SetZero() // there is one sink
			}
			return v.Field(i)
		}}.walk(see)
	}
}

// isSinkKind reports whether a member of the sink is a kind of sinks.
func isSinkKind(name string) bool {
	return slices.ContainsFunc(spec.SinkKinds(), func(f reflect.StructField) bool { return named(f) == name })
}

// present makes what v points to or lists, once, and returns it.
func present(v reflect.Value) reflect.Value {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
			switch made := v.Interface().(type) { // with what the API requires
			case *v1alpha1.Auth:
				made.Type, made.SecretRef = v1alpha1.AuthBasic, &v1alpha1.SecretRef{Name: "login"}
			case *v1alpha1.TLS:
				made.ClientCertSecretRef = &v1alpha1.SecretRef{Name: "client"}
			case *v1alpha1.PostgresSink:
				made.SecretRef.Name = "inbox-db"
			case *v1alpha1.DatabaseTLS:
				made.ClientCertSecretRef = &v1alpha1.SecretRef{Name: "client"}
			case *v1alpha1.Migration:
				made.SecretRef, made.ClientCertSecretRef = &v1alpha1.SecretRef{Name: "owner"}, &v1alpha1.SecretRef{Name: "owner-client"}
			}
		}
		return v.Elem()
	}
	if v.Len() == 0 {
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	}
	return v.Index(0)
}

// with is the smallest resource in which set was done to the field.
func (f field) with(set func(v reflect.Value)) objects {
	r := objects{minimal(), nil}
	if strings.HasPrefix(f.path, "outbox.") {
		r.outbox = &v1alpha1.Outbox{ObjectMeta: metav1.ObjectMeta{Name: "main", Namespace: "shop"}, Spec: v1alpha1.OutboxSpec{
			SecretRef: v1alpha1.SecretRef{Name: "orders-db"}, Schema: "outbox"}}
		r.obd.Spec.Database, r.obd.Spec.OutboxRef = nil, &v1alpha1.OutboxRef{Name: "main"}
	}
	set(f.in(r))
	return r
}

// value sets a leaf to the first or the second of two values of its type. The API server validates values, and not this
// package.
func value(n int) func(reflect.Value) {
	return func(v reflect.Value) {
		if v.Kind() == reflect.Pointer {
			v.Set(reflect.New(v.Type().Elem()))
			v = v.Elem()
		}
		switch at := v.Addr().Interface().(type) {
		case *spec.Duration:
			*at = spec.Duration(time.Duration(n) * time.Second)
			return
		case *runtime.RawExtension:
			at.Raw = fmt.Appendf(nil, `{"metadata":{"labels":{"team":"v%d"}}}`, n)
			return
		case *v1alpha1.ConsumerPolicy:
			*at = [...]v1alpha1.ConsumerPolicy{v1alpha1.ConsumersAny, v1alpha1.ConsumersVerified}[n-1]
			return
		case *v1alpha1.MigrationPolicy:
			*at = [...]v1alpha1.MigrationPolicy{v1alpha1.MigrationJob, v1alpha1.MigrationNone}[n-1]
			return
		}
		switch v.Kind() {
		case reflect.String:
			v.SetString(fmt.Sprintf("v%d", n))
		case reflect.Bool:
			v.SetBool(n == 1)
		case reflect.Slice:
			v.Set(reflect.ValueOf([]string{fmt.Sprintf("v%d", n)}))
		default:
			v.SetInt(int64(n))
		}
	}
}

// workload is what the operator makes of the resource. Every
// Secret's and every schema's file that the dispatchers' file names is mounted, and no other.
func workload(t *testing.T, r objects) string {
	t.Helper()
	obd := r.obd
	deployment, err := deployment(obd, r.outbox, flags)
	if err != nil {
		t.Fatal(err)
	}
	migration, err := NewMigration(obd, flags)
	if r.outbox != nil {
		migration, err = NewOutboxMigration(r.outbox, flags)
	}
	if err != nil {
		t.Fatal(err)
	}
	var mounted []string
	for _, volume := range deployment.Spec.Template.Spec.Volumes {
		switch *volume.Name {
		case "secrets":
			for _, source := range volume.Projected.Sources {
				var item corev1ac.KeyToPathApplyConfiguration
				if source.Secret != nil {
					item = source.Secret.Items[0]
				} else {
					item = source.ConfigMap.Items[0]
				}
				mounted = append(mounted, secretsDir+"/"+*item.Path)
			}
		case "schemas":
			for _, source := range volume.Projected.Sources {
				mounted = append(mounted, schemasDir+"/"+*source.ConfigMap.Items[0].Path)
			}
		}
	}
	delete(deployment.Annotations, AnnotationSpec) // a hash of the spec, which differs for every field and reaches no pod
	slices.Sort(mounted)
	named := regexp.MustCompile(`(`+secretsDir+`|`+schemasDir+`)/[^\s"]+`).FindAllString(render(Config(obd, r.outbox)), -1)
	slices.Sort(named)
	if !slices.Equal(mounted, named) {
		t.Errorf("the file names %v, and mounted are %v", named, mounted)
	}
	made := []any{StateConfigMap(obd), ServiceAccount(obd), filesOf(r), deployment}
	if migration != nil {
		made = append(made, migration.Job(1))
	}
	text, err := json.Marshal(made)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// filesOf are the files of all pods.
func filesOf(r objects) map[string]string {
	all := map[string]string{"dispatcher": ConfigMap(r.obd, r.outbox).Data[keyConfig]}
	migration := MigrationConfigMap(r.obd)
	if r.outbox != nil {
		migration = OutboxConfigMap(r.outbox)
	}
	if migration != nil {
		maps.Copy(all, migration.Data)
	}
	return all
}

// changed are the file's fields in which the two resources differ.
func changed(fields map[string]bool, one, two objects) (paths []string) {
	a, b := flat(Config(one.obd, one.outbox)), flat(Config(two.obd, two.outbox))
	for path := range fields {
		if a[path] != b[path] {
			paths = append(paths, path)
		}
	}
	return paths
}

// flat is what the file has at each path, also where that is more than a value.
func flat(c spec.Config) map[string]string {
	var whole any
	if err := yaml.Unmarshal([]byte(render(c)), &whole); err != nil {
		panic(err) // it was just written
	}
	all := map[string]string{}
	flatten(whole, func(path string, v any) { all[path] = fmt.Sprint(v) })
	return all
}

// flatten visits a value and all that is in it, with its path; [] is any element of a list.
func flatten(v any, see func(path string, v any)) {
	var visit func(path string, v any)
	visit = func(path string, v any) {
		see(path, v)
		switch v := v.(type) {
		case map[string]any:
			for name, inner := range v {
				visit(strings.TrimPrefix(path+"."+name, "."), inner)
			}
		case []any:
			for _, inner := range v {
				visit(path+"[]", inner)
			}
		}
	}
	visit("", v)
}

// paths visits the fields of the file that have values.
func paths(typ reflect.Type, path string, see func(path string)) {
	switch {
	case typ.Kind() == reflect.Pointer:
		paths(typ.Elem(), path, see)
	case typ.Kind() == reflect.Slice && typ.Elem().Kind() == reflect.Struct:
		paths(typ.Elem(), path+"[]", see)
	case typ.Kind() == reflect.Struct:
		for f := range typ.Fields() {
			if f.Tag.Get("json") != "-" {
				paths(f.Type, strings.TrimPrefix(path+"."+named(f), "."), see)
			}
		}
	default:
		see(path)
	}
}

// named is the field's name in JSON, which is that in Go: so no two fields are exchanged.
func named(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	if !strings.EqualFold(name, f.Name) {
		panic(fmt.Sprintf("the field %s is %q in JSON, want the same name", f.Name, name))
	}
	return name
}

func piped() *v1alpha1.OutboxDispatcher {
	obd := full() // with a sink that takes routes
	obd.Spec.Sink.Routes = []v1alpha1.Route{{Topics: []string{"refunds", "orders"}, To: `"/a"`}, {To: `"/b"`}}
	obd.Spec.Message.SchemaRegistry = &v1alpha1.SchemaRegistry{URL: "https://registry.example.com"}
	obd.Spec.Message.Validation = []v1alpha1.Validation{
		{Types: []string{"B", "A"}, Schema: &v1alpha1.PayloadSchema{ConfigMapRef: &v1alpha1.ConfigMapRef{Name: "schemas", Key: "order.json"}},
			Rules: []v1alpha1.Rule{{Rule: "payload.total > 0", Message: "positive"}}},
		{Schema: &v1alpha1.PayloadSchema{Inline: "{}"}},
		{Schema: &v1alpha1.PayloadSchema{Registry: &v1alpha1.RegistrySchema{Subject: "latest"}}},
		{Schema: &v1alpha1.PayloadSchema{Registry: &v1alpha1.RegistrySchema{Subject: "fixed", Version: ptr.To[int32](3)}}},
	}
	obd.Spec.Message.Transform = []v1alpha1.Transformation{{Types: []string{"A"}, Payload: "payload"}}
	obd.Spec.Sink.ContentMode, obd.Spec.Sink.HTTP.BatchSize = "Binary", nil // which message requires
	obd.Spec.Message.Format, obd.Spec.Message.Headers = "Plain", []v1alpha1.MessageHeader{{Name: "X-Type", Expression: "event.type"}}
	return obd
}

func TestPipelineReachesTheFile(t *testing.T) {
	obd := piped()
	refs := SchemaRefs(obd)
	if want := []SchemaRef{{"schemas", "order.json", 0}}; !reflect.DeepEqual(refs, want) {
		t.Fatalf("refs %v", refs)
	}
	c := Config(obd, whatever())
	routes := []spec.Route{{Topics: []string{"orders", "refunds"}, To: `"/a"`}, {To: `"/b"`}}
	message := spec.Message{
		Format: spec.FormatPlain, Headers: map[string]string{"X-Type": "event.type"},
		Validation: []spec.Validation{
			{Types: []string{"A", "B"}, Schema: &spec.PayloadSchema{File: "/etc/outbox/schemas/0.json"}, Rules: []spec.Rule{{Rule: "payload.total > 0", Message: "positive"}}},
			{Schema: &spec.PayloadSchema{Inline: "{}"}},
			{Schema: &spec.PayloadSchema{Registry: &spec.RegistrySchema{Subject: "latest"}}},
			{Schema: &spec.PayloadSchema{Registry: &spec.RegistrySchema{Subject: "fixed", Version: 3}}},
		},
		Transform: []spec.Transformation{{Types: []string{"A"}, Payload: "payload"}},
	}
	message.SchemaRegistry = c.Message.SchemaRegistry // TestMountedFilesAreNamedInTheFile is about it
	if !reflect.DeepEqual(c.Sink.Routes, routes) || !reflect.DeepEqual(c.Message, message) {
		t.Errorf("got  %+v %+v\nwant %+v %+v", c.Sink.Routes, c.Message, routes, message)
	}
	c.ApplyDefaults()
	if err := c.ValidatePipeline(); err != nil {
		t.Error(err)
	}
}

// The retention of an Outbox is about all rows of its tables, and that of a dispatcher's own database about those
// that it delivers.
//
// CONTRACT: C-60
func TestScopeOfRetention(t *testing.T) {
	obd := minimal()
	if c := Config(obd, nil); c.Retention.Scope != "" {
		t.Errorf("with a database of its own the scope is %q, want the default", c.Retention.Scope)
	}
	obd.Spec.Database, obd.Spec.OutboxRef = nil, &v1alpha1.OutboxRef{Name: "main"}
	if c := Config(obd, whatever()); c.Retention.Scope != spec.ScopeOutbox {
		t.Errorf("with an Outbox the scope is %q", c.Retention.Scope)
	}
}

// What the resource says about the journal is for the migration, which logs in as the owner: a change of it runs the Job
// again, and rolls no pod. Without it the file says nothing, and the database's journal stays as it is.
//
// CONTRACT: C-61
func TestJournalIsTheMigrations(t *testing.T) {
	o := &v1alpha1.Outbox{}
	o.Name, o.Namespace = "orders", "shop"
	o.Spec = v1alpha1.OutboxSpec{SecretRef: v1alpha1.SecretRef{Name: "db"}, Migration: &v1alpha1.Migration{Policy: v1alpha1.MigrationJob, SecretRef: &v1alpha1.SecretRef{Name: "owner"}}}
	hash := func() string {
		t.Helper()
		m, err := NewOutboxMigration(o, Platform{Image: "outbox"})
		if err != nil {
			t.Fatal(err)
		}
		return m.Hash
	}
	files := func() map[string]string { return OutboxConfigMap(o).Data }
	hashes, dispatches := []string{hash()}, files()[keyConfig]
	if strings.Contains(files()[keyMigrate], "journal") {
		t.Errorf("without a journal the migration's file is\n%s", files()[keyMigrate])
	}
	for _, c := range []struct {
		mode  v1alpha1.JournalMode
		hours int
		want  string
	}{
		{v1alpha1.JournalEnabled, 168, "journal:\n  mode: Enabled\n"}, {v1alpha1.JournalEnabled, 720, "journal:\n  mode: Enabled\n  retention: 720h\n"},
		{v1alpha1.JournalDisabled, 168, "journal:\n  mode: Disabled\n"},
	} {
		o.Spec.Journal = &v1alpha1.Journal{Mode: c.mode}
		o.Spec.Journal.Retention = spec.Duration(time.Duration(c.hours) * time.Hour)
		if got := files(); !strings.Contains(got[keyMigrate], c.want) || got[keyConfig] != dispatches {
			t.Errorf("the migration's file is\n%s\nwant in it\n%s\nand the dispatchers' is\n%s", got[keyMigrate], c.want, got[keyConfig])
		}
		hashes = append(hashes, hash())
	}
	seen := map[string]bool{}
	for _, h := range hashes {
		seen[h] = true
	}
	if len(seen) != len(hashes) {
		t.Errorf("the migrations are %v, want each another", hashes)
	}
}

// The index of tenants is made by the migration's Job, which has a day for it, and the dispatchers' file has no word of it.
//
// CONTRACT: C-37
func TestTenantsAreTheMigrations(t *testing.T) {
	o := &v1alpha1.Outbox{}
	o.Name, o.Namespace = "orders", "shop"
	o.Spec = v1alpha1.OutboxSpec{SecretRef: v1alpha1.SecretRef{Name: "db"}, Migration: &v1alpha1.Migration{Policy: v1alpha1.MigrationJob, Tenants: "Indexed"}}
	files := OutboxConfigMap(o).Data
	if !strings.Contains(files[keyMigrate], "tenants: Indexed\n") || strings.Contains(files[keyConfig], "tenants") {
		t.Errorf("the migration's file is\n%s\nand the dispatchers' is\n%s", files[keyMigrate], files[keyConfig])
	}
	for tenants, want := range map[string]time.Duration{"": 30 * time.Minute, "Indexed": 24 * time.Hour} {
		o.Spec.Migration.Tenants = tenants
		m, err := NewOutboxMigration(o, Platform{Image: "outbox"})
		if err != nil {
			t.Fatal(err)
		}
		if got := time.Duration(*m.Job(1).Spec.ActiveDeadlineSeconds) * time.Second; got != want {
			t.Errorf("with tenants %q the Job has %s, want %s", tenants, got, want)
		}
	}
}
