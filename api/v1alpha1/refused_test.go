package v1alpha1_test

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	jsonpatch "github.com/evanphx/json-patch/v5"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kstatus "sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// refusals is a part of a file of testdata/refused: a valid object, and what makes it invalid.
type refusals struct {
	Base    json.RawMessage `json:"base"`
	Refused []refusal       `json:"refused"`
}

// refusal is one invalid object and the server's response to it.
type refusal struct {
	Name  string          `json:"name"`
	Patch json.RawMessage `json:"patch"`
	Says  string          `json:"says"`
}

// CONTRACT: C-28, C-101
var _ = Describe("an invalid object", Label("samples", "refusal"), func() {
	seen := map[string]bool{}
	for _, part := range refused() {
		It(fmt.Sprintf("needs a valid base: %s", part.Base), func(ctx SpecContext) {
			if said := dryRun(ctx, part.Base); said != nil {
				Fail(fmt.Sprintf("the server must accept the base %s\nbut says: %s", part.Base, lines(said)))
			}
		})
		for _, r := range part.Refused {
			if kind := kindOf(r); seen[kind] {
				continue // TestBothDoorsRefuseWithTheSameWords has them all
			} else {
				seen[kind] = true
			}
			It(r.Name+" is refused with its words", func(ctx SpecContext) {
				object, err := jsonpatch.MergePatch(part.Base, r.Patch)
				if err != nil {
					Fail(fmt.Sprintf("%s: merge %s into %s: %v", r.Name, r.Patch, part.Base, err))
				}
				want, said := strings.Split(r.Says, "\n"), dryRun(ctx, object)
				slices.Sort(want)
				if said == nil {
					said = []string{"nothing, it accepts the object"}
				}
				if !slices.Equal(said, want) {
					Fail(fmt.Sprintf("%s: the server must refuse %s\nand say:  %s\nbut says: %s", r.Name, object, lines(want), lines(said)))
				}
			})
		}
	}
})

// kindOf is what kind of rule an object breaks: the words without fields and values. All rules in CEL are one kind.
func kindOf(r refusal) string {
	words := regexp.MustCompile(`"[^"]*"|\S*\d\S*|\S*[.\[]\S*`).ReplaceAllString(strings.Split(r.Says, "\n")[0], "")
	if kind, _, rule := strings.Cut(words, "Invalid value:"); rule && !strings.Contains(words, " in body ") {
		return kind
	}
	return words
}

// lines are the complaints, one below the other.
func lines(complaints []string) string { return strings.Join(complaints, "\n          ") }

// CONTRACT: C-101
func TestEveryRuleHasARefusedObject(t *testing.T) {
	var says strings.Builder
	for _, part := range refused() {
		for _, r := range part.Refused {
			says.WriteString(r.Says + "\n")
		}
	}
	rules := 0
	check := func(path string, s *apiextensionsv1.JSONSchemaProps) {
		for _, rule := range s.XValidations {
			if rules++; strings.Contains(rule.Rule, "oldSelf") {
				continue // no refused object is an update; a spec has one
			}
			need.That(t, rule.Message != "" && strings.Contains(says.String(), rule.Message), "%s: no entry of testdata/refused says %q (rule %s)", path, rule.Message, rule.Rule)
		}
	}
	for kind := range crds {
		check("", root(t, kind))
		walk(t, kind, check)
	}
	need.That(t, rules >= 20, "only %d rules were found", rules)
}

// refused returns the parts of all files of testdata/refused.
func refused() (all []refusals) {
	for _, file := range files("testdata", "refused") {
		text, err := os.ReadFile(file)
		var parts []refusals
		if err == nil {
			err = yaml.UnmarshalStrict(text, &parts)
		}
		if err != nil {
			panic(fmt.Sprintf("%s: %v", file, err))
		}
		all = append(all, parts...)
	}
	return all
}

// dryRun returns the server's complaints about the creation of the object in the namespace default; nil if it accepts it.
func dryRun(ctx SpecContext, object []byte) []string {
	GinkgoHelper()
	obj := &unstructured.Unstructured{}
	if err := obj.UnmarshalJSON(object); err != nil {
		Fail(fmt.Sprintf("%s: %v", object, err))
	}
	obj.SetNamespace("default")
	return complaints(strict.Create(ctx, obj, client.DryRunAll))
}

// kstatus takes an object without a status for Current.
var _ = Describe("an object that the operator has not seen", Label("status"), func() {
	for _, file := range []string{"../../config/samples/log.yaml", "../../config/samples/outbox.yaml", "../../config/samples/replay-group.yaml", "../../config/samples/consumer.yaml"} {
		for _, obj := range objects(file) {
			It("is in progress: "+obj.GetKind(), func(ctx SpecContext) {
				obj.SetName("fresh-" + obj.GetName())
				Expect(strict.Create(ctx, obj)).To(Succeed())
				read := &unstructured.Unstructured{}
				read.SetGroupVersionKind(obj.GroupVersionKind())
				Expect(strict.Get(ctx, client.ObjectKeyFromObject(obj), read)).To(Succeed())
				for _, o := range []*unstructured.Unstructured{obj, read} {
					result, err := kstatus.Compute(o)
					Expect(err).NotTo(HaveOccurred())
					Expect(result.Status).To(Equal(kstatus.InProgressStatus), "status %v", o.Object["status"])
				}
			})
		}
	}
})

// CONTRACT: C-42
var _ = Describe("a DeadLetterReplay", Label("refusal", "replay"), func() {
	It("cannot be changed, because its set is fixed", func(ctx SpecContext) {
		obj := objects("../../config/samples/replay-group.yaml")[0]
		obj.SetName("fixed")
		Expect(strict.Create(ctx, obj)).To(Succeed())
		for field, value := range map[string]any{"rate": int64(7), "reason": "CHG-813", "ttlAfterFinished": "1h"} {
			changed := obj.DeepCopy()
			Expect(unstructured.SetNestedField(changed.Object, value, "spec", field)).To(Succeed())
			Expect(complaints(strict.Update(ctx, changed))).To(ConsistOf(ContainSubstring("spec cannot be changed, because the set is fixed when the replay begins; delete the object")))
		}
		labelled := obj.DeepCopy()
		labelled.SetLabels(map[string]string{"team": "shop"})
		Expect(strict.Update(ctx, labelled)).To(Succeed())
	})
})
