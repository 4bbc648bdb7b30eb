package desired

import (
	"encoding/json"
	"fmt"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

// maxSpec bounds the JSON of the parts of a spec that may be large. The operator keeps specs in memory, and renders them.
const maxSpec = 256 << 10

// AnnotationBytes is on an OutboxDispatcher in the cache that [BoundSpec] has made smaller: what it had.
const AnnotationBytes = "outbox.dev/spec-bytes"

// BoundSpec leaves out what is large of a spec that is too large, so that it takes no memory. What a stop needs stays.
func BoundSpec(obd *v1alpha1.OutboxDispatcher) {
	of := &obd.Spec
	text, err := json.Marshal([]any{of.Sink.Routes, of.Message})
	if err != nil {
		panic(fmt.Sprintf("size of a spec: %v", err)) // plain data only
	}
	if len(text) <= maxSpec {
		return
	}
	of.Sink.Routes, of.Message = nil, spec.Message{}
	metav1.SetMetaDataAnnotation(&obd.ObjectMeta, AnnotationBytes, strconv.Itoa(len(text)))
}

// SpecTooLarge is the sentence about a spec that [BoundSpec] has made smaller, empty for another.
func SpecTooLarge(obd *v1alpha1.OutboxDispatcher) string {
	bytes := obd.Annotations[AnnotationBytes]
	if bytes == "" {
		return ""
	}
	return fmt.Sprintf("spec.sink.routes and spec.message have %s bytes of JSON, and %d are the most; put schemas into ConfigMaps, and make several dispatchers of one.", bytes, maxSpec)
}
