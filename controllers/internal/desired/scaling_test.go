package desired

import (
	"testing"

	"k8s.io/utils/ptr"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

// The number of pods is the recommended one with mode Apply alone, within the bounds, and never against a stop.
//
// CONTRACT: C-107
func TestScaling(t *testing.T) {
	scaling := func(mode v1alpha1.ScalingMode) *v1alpha1.Scaling {
		return &v1alpha1.Scaling{Mode: mode, Min: 2, Max: 6}
	}
	for name, c := range map[string]struct {
		replicas    *int32
		scaling     *v1alpha1.Scaling
		recommended int32
		want        int32
	}{
		"without":                  {nil, nil, 5, 1},
		"without, in the spec":     {ptr.To[int32](3), nil, 5, 3},
		"recommended alone":        {ptr.To[int32](3), scaling(v1alpha1.ScalingRecommend), 5, 3},
		"applied":                  {ptr.To[int32](3), scaling(v1alpha1.ScalingApply), 5, 5},
		"the first":                {ptr.To[int32](3), scaling(v1alpha1.ScalingApply), 0, 3},
		"the first, below min":     {nil, scaling(v1alpha1.ScalingApply), 0, 2},
		"the first, above max":     {ptr.To[int32](9), scaling(v1alpha1.ScalingApply), 0, 6},
		"recommended before max":   {ptr.To[int32](3), scaling(v1alpha1.ScalingApply), 9, 6},
		"recommended before min":   {ptr.To[int32](3), scaling(v1alpha1.ScalingApply), 1, 2},
		"stopped":                  {ptr.To[int32](0), scaling(v1alpha1.ScalingApply), 5, 0},
		"stopped, recommend alone": {ptr.To[int32](0), scaling(v1alpha1.ScalingRecommend), 5, 0},
	} {
		obd := minimal()
		obd.Spec.Replicas, obd.Spec.Pods.Scaling = c.replicas, c.scaling
		obd.Status.Scaling = &v1alpha1.ScalingStatus{Recommended: c.recommended}
		if got := Replicas(obd); got != c.want {
			t.Errorf("%s: %d pods, want %d", name, got, c.want)
		}
		other := minimal()
		other.Spec.Replicas = c.replicas
		if specHash(obd) != specHash(other) {
			t.Errorf("%s: it rolls pods", name)
		}
	}
}
